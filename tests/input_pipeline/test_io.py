"""Atomic files, locks and copies, on a disk and in object stores."""

import multiprocessing
import os
import threading

import filelock
import pytest

from input_pipeline import io
from input_pipeline.errors import DataError, UnwritableError
from tests.object_store import UPLOADS

pytestmark = UPLOADS


@pytest.fixture
def quick_locks(monkeypatch):
    for name, seconds in {"BEAT": 0.1, "POLL": 0.05, "STALE": 1.0}.items():
        monkeypatch.setattr(io, name, seconds)


def test_replace_whole_or_absent(root):
    path = root / "a.json"
    with pytest.raises(ZeroDivisionError), io.replace(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert not path.exists() and not list(root.glob("*.partial"))
    for value in ({"a": [1]}, {"b": 2}):
        io.write_json(path, value)
        assert io.read_json(path) == value and io.info(path).size == len(path.read_bytes())
    assert io.checksum(path) == io.checksum(io.local_copy(path))


def test_files_below_sorted(root):
    for name in ("2.csv", "1.csv", "deep/3.csv"):
        io.make_folder((root / name).parent)
        (root / name).write_bytes(name.encode())
    assert [path.read_text() for path in io.files_below(root)] == ["1.csv", "2.csv", "deep/3.csv"]


def test_lock_excludes(root, quick_locks):
    path, order, waits = root / "lock", [], threading.Event()
    (root / "other").write_bytes(b"")

    def second():
        with io.lock(path, waits.set):
            order.append("second")

    with io.lock(path):
        with pytest.raises(filelock.Timeout), io.lock(path, timeout=0):
            pass
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30) and thread.ident in io.waiting
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"] and not io.waiting


def _hold_lock_and_die(name, beat):
    io.BEAT = beat
    with io.lock(io.open_path(name)):
        os._exit(0)


def test_lock_of_killed_process(root, quick_locks):
    path = root / "lock"
    process = multiprocessing.get_context("spawn").Process(target=_hold_lock_and_die, args=(str(path), io.BEAT))
    process.start()
    process.join(60)
    assert process.exitcode == 0  # it died with the lock
    with io.lock(path, timeout=30):  # raises if it is still held
        pass


def test_local_copy_once_per_version(bucket, store):
    path = io.open_path(bucket) / "a.bin"
    path.write_bytes(b"one")
    copy = io.local_copy(path)
    written = copy.stat().st_mtime_ns
    assert copy.read_bytes() == b"one" and copy.is_relative_to(store.copies)
    assert io.local_copy(path) == copy and copy.stat().st_mtime_ns == written
    path.write_bytes(b"two")
    assert io.local_copy(path).read_bytes() == b"two"


def test_glob_store_recursive(bucket):
    for name in ("1.csv", "deep/3.csv", "deep/4.txt"):
        (io.open_path(bucket) / name).write_bytes(b"abc")
    found = io.glob_store(f"{bucket}/**/*.csv")
    assert list(found) == [f"{bucket}/1.csv", f"{bucket}/deep/3.csv"] and found[f"{bucket}/1.csv"].size == 3


def test_missing_bucket(bucket, store):
    path = io.open_path(f"{store.scheme}://nowhere-at-all/x")
    assert io.glob_store(f"{path}/*.txt") == {}
    with pytest.raises(UnwritableError), io.writable(path, "data.store"):
        io.write_json(path / "a.json", {})


@pytest.mark.parametrize("name", ["hdfs://a/b", "s3://"])
def test_open_path_unusable(name):
    with pytest.raises(DataError):
        io.open_path(name)


def test_writable_mistakes(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnwritableError), io.writable(tmp_path / "file" / "below", "data.store"):
        pass
    with pytest.raises(OSError) as raised, io.writable(tmp_path / "folder", "data.store"):
        raise OSError(5, "Input/output error")
    assert raised.value.errno == 5
