"""Files that several processes share and any of them may be killed over: locks and atomic writes.

On a disk a file is renamed to its name when it is whole; in an object store it is uploaded then (`remote.py`).
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from input_pipeline.away import contents, naming, passes, persistently
from input_pipeline.errors import DataError, UnwritableError
from input_pipeline.leases import leased
from input_pipeline.remote import RemotePath, local

CHUNK = 1 << 22  # bytes read at a time

# A disk that takes no more, or not from this user.
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}
_OF_FILES = {errno.EIO, errno.ESTALE}  # what no network has
_IN_THE_WAY = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


@contextlib.contextmanager
def written_under(folder: Path, key: str) -> Iterator[None]:
    """Turns a full disk, an unwritable folder or an unreadable source into a DataError; `key` sets the folder."""
    try:
        persistently(lambda: folder.mkdir(parents=True, exist_ok=True))
        yield
    except DataError:  # such as what an object store did not do
        raise
    except OSError as error:
        if error.errno in _OF_FILES:  # those of its sources are named where they are read
            with naming(str(folder)):
                raise
        if isinstance(folder, RemotePath) or passes(error):
            raise
        where = Path(error.filename or folder)
        if error.filename and not (where.is_relative_to(folder) or folder.is_relative_to(where)):
            raise DataError(f"cannot read {where}: {error.strerror}; make it readable or leave it out") from None
        if error.errno not in UNWRITABLE | _IN_THE_WAY:
            raise
        if os.path.isfile(where) and not os.access(where, os.R_OK):
            raise DataError(
                f"cannot use {where}: {error.strerror}; let it be read and written, or point {key} to another folder"
            ) from None
        raise UnwritableError(where, error.strerror, key) from None


waiting: set[int] = set()  # threads of this process that wait for a lock which another one holds


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds an exclusive lock on `path`; calls `on_wait` once if another process holds it, and is `waiting` then.

    The kernel drops the lock with its holder, so a killed process never leaves one behind. In an object store it is
    noticed that the holder no longer shows that it lives.
    """

    def wait() -> None:
        on_wait()
        waiting.add(threading.get_ident())

    with contextlib.ExitStack() as held:
        try:
            held.enter_context((leased if isinstance(path, RemotePath) else _locked_here)(path, wait))
        finally:
            waiting.discard(threading.get_ident())
        yield


@contextlib.contextmanager
def _locked_here(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """The same on a disk."""
    with persistently(lambda: open(path, "a")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Gives a temporary name to write to, then renames it to `path` once its bytes are on disk, or uploads them."""
    if isinstance(path, RemotePath):
        with tempfile.TemporaryDirectory(prefix="longhaul-") as folder:
            partial = Path(folder) / path.name
            yield partial
            path.put(partial)
        return
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")  # numbers of processes are a machine's own
    try:
        yield partial
        with naming(path), open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if str(error.filename) == str(partial):
            error.filename = str(path)  # the name that is known
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Removes `folder` again where nothing but its lock is left in it: what was to fill it has failed."""
    try:
        yield
    finally:
        if {path.name for path in folder.glob("*")} <= {"lock"}:
            (folder / "lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # such as a link to a folder, which stays: the failure is what is told
                folder.rmdir()


def write_json(path: Path, value: object) -> None:
    """Writes `value` to `path`, whole or not at all."""
    with replaced(path) as partial, naming(path):
        partial.write_text(json.dumps(value, indent=1), encoding="utf-8")


def from_json(text: str) -> object:
    """What a text of JSON says. Errors: ValueError where it is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def read_json(path: Path) -> dict:
    """What a file of JSON holds. Errors: ValueError where it is none, or is nested too deeply."""
    return from_json(contents(path).decode())


def checksum(path: Path) -> int:
    """CRC-32 of a file's bytes, read to the end."""
    value = 0
    with naming(str(path)), path.open("rb") if isinstance(path, RemotePath) else open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def copied_checksum(path: Path, expected: int) -> int:
    """`checksum` of a file, or of the copy of an object store's.

    The copy is made anew where that is not what is `expected`: it may be all that is damaged.
    """
    found = checksum(local(path))
    return checksum(local(path, anew=True)) if found != expected and isinstance(path, RemotePath) else found


def remove_partial(folder: Path) -> None:
    """Clears what killed writers left under `folder`; call it under the folder's lock."""
    for leftover in folder.glob("*.partial"):
        leftover.unlink(missing_ok=True)
