"""Fixtures of the tests of checkpoints."""

import pytest
from runs import train_here


@pytest.fixture
def resume(text, capsys):
    """Continues a run for one update; returns the exit code and standard error."""

    def resume(workdir, *flags, **overrides):
        code = train_here(workdir, text, *flags, **{"train__steps": 17} | overrides)
        return code, capsys.readouterr().err

    return resume
