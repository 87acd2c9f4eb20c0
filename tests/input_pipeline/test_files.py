"""What is left of files and folders where something fails on the way."""

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from input_pipeline import files
from input_pipeline.errors import DataError
from input_pipeline.files import filled


def test_a_link_that_stays_empty_hides_no_mistake(tmp_path):
    """What is linked cannot be removed as a folder is."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tokenizer").symlink_to("elsewhere")
    with pytest.raises(ValueError, match="of the text"), filled(tmp_path / "tokenizer"):
        raise ValueError("of the text")
    assert (tmp_path / "tokenizer").is_dir()


def test_what_may_not_be_read_is_not_said_to_be_unwritable(tmp_path, monkeypatch):
    """Whoever runs the tests may read everything."""
    (tmp_path / "store.json").write_text("{}")
    monkeypatch.setattr(files.os, "access", lambda path, mode: mode != os.R_OK)
    words = r"cannot use .*/store.json: Permission denied; let it be read and written, or point data.store"
    with pytest.raises(DataError, match=words), files.written_under(tmp_path, "data.store"):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "store.json"))


def test_who_waits_for_a_lock_is_known(tmp_path, monkeypatch):
    """While another holds it, and not while a store takes its time over one that nobody holds."""
    seen = []

    @contextlib.contextmanager
    def leased(path, on_wait):
        seen.append(bool(files.waiting))
        on_wait()
        seen.append(files.waiting == {threading.get_ident()})
        yield

    monkeypatch.setattr(files, "RemotePath", Path)
    monkeypatch.setattr(files, "leased", leased)
    with files.locked(tmp_path / "lock", lambda: seen.append("told")):
        assert seen == [False, "told", True] and not files.waiting
