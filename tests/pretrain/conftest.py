"""Fixtures of the tests that start real runs."""

import shutil
import signal

import pytest
from runs import ROOT, train
from shared_programs import share

from pretrain.distributed.shutdown import SIGNALS


@pytest.fixture(scope="session", autouse=True)
def shared_programs():
    with share():
        yield


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """Some megabytes of text are more than a test needs: this package's own source."""
    folder = tmp_path_factory.mktemp("text")
    for path in (ROOT / "pretrain").rglob("*.py"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="session")
def whole(tmp_path_factory, text):
    """The run that nothing happened to."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    done = train(workdir, text)
    assert done.returncode == 0, done.stderr
    return workdir


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of that run which ends at `step`."""

    def make(step):
        workdir = tmp_path / "copy"
        shutil.copytree(whole, workdir)
        for checkpoint in (workdir / "checkpoints").iterdir():
            if checkpoint.name.isdigit() and int(checkpoint.name) > step:
                shutil.rmtree(checkpoint)
        return workdir

    return make


@pytest.fixture
def signals():
    """For runs in the tests' own process: the loop takes signals over, and the next test gets them back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
