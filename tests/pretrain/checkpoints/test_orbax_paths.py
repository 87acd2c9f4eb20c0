"""What Orbax's paths answer about folders on a disk: that of the system."""

import errno
import os

import pytest
from etils import epath

from pretrain.checkpoints import paths

QUESTIONS = {
    "exists": lambda path: path.exists(),
    "is_dir": lambda path: path.is_dir(),
    "glob": lambda path: [*path.glob("*")],
    "glob within": lambda path: [*path.parent.glob("a/*")],
}


@pytest.fixture(autouse=True)
def truly():
    paths.answer_truly()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_folder_that_is_away_is_not_one_that_is_missing(tmp_path, monkeypatch, question):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    path = epath.Path(tmp_path / "a")
    assert QUESTIONS[question](path)
    assert not QUESTIONS[question](epath.Path(tmp_path / "nothing" / "a"))

    def answer(*arguments, **named):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(paths.os, "stat", answer)
    monkeypatch.setattr(paths.os, "listdir", answer)
    number = errno.EACCES
    assert not QUESTIONS[question](path)
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        QUESTIONS[question](path)


def test_brackets_in_the_name_of_a_folder_are_letters(tmp_path):
    folder = epath.Path(tmp_path / "[a]*")
    (folder / "b" / "c").mkdir(parents=True)
    assert [*folder.glob("b*")] == [folder / "b"]
    assert [*folder.glob("b/*")] == [folder / "b" / "c"]
    assert [*folder.glob("?/c")] == [folder / "b" / "c"]
