"""Fixtures of the tests of checkpoints."""

import pytest
from runs import train_here


@pytest.fixture
def run(text, capsys):
    """Goes on with a run for one update; returns the exit code and what was said."""

    def run(workdir, *flags, **overrides):
        code = train_here(workdir, text, *flags, **{"train__steps": 17} | overrides)
        return code, capsys.readouterr().err

    return run
