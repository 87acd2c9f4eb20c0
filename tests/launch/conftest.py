"""Text and comparison for runs of the real program."""

import shutil

import pytest
from launchers import ROOT

from launch import common


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A folder of text to train on."""
    folder = tmp_path_factory.mktemp("text")
    for number, path in enumerate(sorted((ROOT / "pretrain").rglob("*.py"))[:20]):
        shutil.copy(path, folder / f"{number}.py")
    return folder


@pytest.fixture
def same_result(monkeypatch):
    """Asserts that two runs ended with the same parameters, bit for bit."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "pretrain")
    from runs import assert_same_leaves, leaves

    return lambda a, b, step: assert_same_leaves(leaves(a, step), leaves(b, step))


@pytest.fixture(autouse=True)
def config_is_good(request, monkeypatch):
    """Dry runs without the seconds that a check of the config takes, unless a test is of it."""
    if "check_config" not in request.node.name:
        monkeypatch.setattr(common, "check_config", lambda program: None)
