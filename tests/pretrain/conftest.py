"""Fixtures of the tests that start real runs."""

import shutil

import pytest
from runs import ROOT, train


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """Some megabytes of text are more than a test needs: this package's own source."""
    folder = tmp_path_factory.mktemp("text")
    for path in (ROOT / "pretrain").glob("*.py"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="session")
def whole(tmp_path_factory, text):
    """The run that nothing happened to."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    done = train(workdir, text)
    assert done.returncode == 0, done.stderr
    return workdir
