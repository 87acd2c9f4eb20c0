"""Paths, atomic writes, checksums and locks, on disks and in object stores.

A name on a disk becomes a `pathlib.Path`, one that begins with gs:// or s3:// an `epath.Path`, which fsspec's gcsfs and
s3fs serve. In a store an object appears whole or not at all and a folder is a prefix of names, so nothing there is
renamed, appended to or mapped into memory: `replace` uploads, `local_copy` downloads.
"""

import contextlib
import errno
import functools
import hashlib
import importlib.util
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from input_pipeline.errors import DataError, UnwritableError

os.environ.setdefault("EPATH_USE_TF", "false")  # else epath reads gs:// with TensorFlow wherever that is installed
from etils import epath

SCHEMES = {"gs": "gcsfs", "s3": "s3fs"}  # the package for each; the extras are named as the schemes
COPIES = "LONGHAUL_COPIES"  # environment variable: folder of local copies of store files
BLOCK = 1 << 22  # bytes read at a time
# No room, no permission, or a file in the way.
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS}
UNWRITABLE |= {errno.ENOTDIR, errno.EISDIR, errno.EEXIST}

# Seconds. A lock object in a store is rewritten at each BEAT; unchanged for STALE, its holder counts as dead.
BEAT, POLL, STALE = 5.0, 1.0, 60.0


class Folders(NamedTuple):
    """Paths of a run's tokenizer and token stores."""

    tokenizer: Path | epath.Path
    data: Path | epath.Path


class FileInfo(NamedTuple):
    """Size in bytes and time of the last change in nanoseconds."""

    size: int
    changed: int


def is_remote(name: object) -> bool:
    """Whether a path or its name is in an object store."""
    return "://" in str(name)


def open_path(name: object) -> Path | epath.Path:
    """The path of a name on a disk or in a store. Errors: DataError for an unknown scheme or a missing package."""
    if not is_remote(name):
        return Path(str(name))
    scheme, _, key = str(name).partition("://")
    if scheme not in SCHEMES or not key.strip("/"):
        raise DataError(f"{name}: unknown kind of store or no bucket. Write gs://BUCKET/FOLDER or s3://BUCKET/FOLDER.")
    _configure(scheme)
    return epath.Path(f"{scheme}://{key.strip('/')}")


@functools.cache
def _configure(scheme: str) -> None:
    """Sets the client library's retries and timeouts, for epath and Orbax too. The only place that does."""
    if importlib.util.find_spec(SCHEMES[scheme]) is None:
        raise DataError(f"{scheme}:// needs the package {SCHEMES[scheme]}. Run pip install -e '.[{scheme}]'.")
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}  # other processes write there too
    if scheme == "gs":
        import aiohttp

        # gcsfs tries each request six times; by default it waits for an answer without end.
        options["requests_timeout"] = aiohttp.ClientTimeout(600, sock_connect=20, sock_read=20)
        # Else gcsfs asks for each bucket's type, and warns each time that it may not.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    else:
        retries = {"max_attempts": 10, "mode": "standard"}
        options["config_kwargs"] = {"retries": retries, "connect_timeout": 20, "read_timeout": 60}
        if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
            options["endpoint_url"] = endpoint
    fsspec.config.conf.setdefault(scheme, {}).update(options)


def filesystem(path: epath.Path):
    """The fsspec file system of a path in a store."""
    import fsspec

    scheme = str(path).partition("://")[0]
    _configure(scheme)  # a worker process may have unpickled the path
    return fsspec.filesystem(scheme)


def info(path: Path | epath.Path) -> FileInfo:
    """Size and time of a file. Errors: FileNotFoundError."""
    if is_remote(path):
        return _store_info(filesystem(path).info(str(path)))
    status = os.stat(path)
    return FileInfo(status.st_size, status.st_mtime_ns)


def _store_info(entry: dict) -> FileInfo:
    changed = entry.get("LastModified") or entry.get("mtime") or entry.get("updated")
    return FileInfo(int(entry["size"] or 0), int(changed.timestamp() * 1e9) if hasattr(changed, "timestamp") else 0)


def files_below(folder: Path | epath.Path) -> list[Path | epath.Path]:
    """All files below a folder, sorted by name."""
    if is_remote(folder):
        store = filesystem(folder)
        return [open_path(store.unstrip_protocol(name)) for name in sorted(store.find(str(folder)))]
    return sorted(path for path in folder.rglob("*") if path.is_file())


def glob_store(pattern: str) -> dict[str, FileInfo]:
    """Files of a store that match a glob, which may contain `**`, sorted by name; from one listing."""
    path = open_path(pattern)  # epath's own glob does not know `**`
    store = filesystem(path)
    with _as_os_error(path), contextlib.suppress(FileNotFoundError):  # gcsfs raises that for a missing bucket
        entries = sorted(store.glob(pattern, detail=True).items())
        return {store.unstrip_protocol(name): _store_info(entry) for name, entry in entries if entry["type"] == "file"}
    return {}


@contextlib.contextmanager
def _as_os_error(path: epath.Path) -> Iterator[None]:
    """Raises errors of credentials, which the client libraries raise as their own types, as OSError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError | DataError):
            raise
        raise PermissionError(errno.EACCES, str(error)[:200], str(path)) from error


def make_folder(folder: Path | epath.Path) -> None:
    """Creates a folder and its parents; nothing in a store, where fsspec would create a missing bucket."""
    if not is_remote(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def writable(folder: Path | epath.Path, key: str) -> Iterator[None]:
    """Creates `folder` for what the block writes there.

    Errors: UnwritableError, which names the config `key` of the folder, for a full disk or missing permission.
    """
    try:
        make_folder(folder)
        yield
    except OSError as error:
        if is_remote(folder) or error.errno in UNWRITABLE:
            raise UnwritableError(f"{key}={folder}: {error}. Make room, or choose another folder.") from error
        raise


@contextlib.contextmanager
def replace(path: Path | epath.Path) -> Iterator[Path]:
    """Yields a temporary file, which becomes `path` when the block ends without an error: whole or not at all."""
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="longhaul-") as folder:
            partial = Path(folder) / path.name
            yield partial
            with _as_os_error(path):
                filesystem(path).put_file(str(partial), str(path))
        return
    # In the same folder: renaming is atomic within a file system only.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())  # else a power loss may keep the name and lose the bytes
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partial(folder: Path | epath.Path) -> None:
    """Deletes temporary files that killed writers left in `folder`. Call it under the folder's lock."""
    for leftover in folder.glob("*.partial"):
        leftover.unlink(missing_ok=True)


def write_json(path: Path | epath.Path, value: object) -> None:
    """Writes `value` as JSON, whole or not at all."""
    with replace(path) as partial:
        partial.write_text(json.dumps(value, indent=1), encoding="utf-8")


def read_json(path: Path | epath.Path) -> Any:
    """The content of a JSON file. Errors: DataError for another format."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:  # of JSON or of UTF-8
        raise DataError(f"{path} is no JSON ({error}). Correct or restore it.") from error


def read_object(path: Path | epath.Path, *names: str) -> dict:
    """The JSON object in a file. Errors: DataError for another file, or for an object without `names`."""
    content = read_json(path)
    if not (isinstance(content, dict) and content.keys() >= {*names}):
        raise DataError(f"{path} is no JSON object{' with ' * bool(names)}{', '.join(names)}. Correct or restore it.")
    return content


def checksum(path: Path | epath.Path) -> int:
    """CRC-32 of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(BLOCK):
            value = zlib.crc32(chunk, value)
    return value


def local_copy(path: Path | epath.Path) -> Path:
    """A file on this machine: `path` itself, or a copy of the store's file, made once per version.

    Copies are in the folder LONGHAUL_COPIES, by default ~/.cache/longhaul/copies. Errors: FileNotFoundError.
    """
    if not is_remote(path):
        return path
    entry = filesystem(path).info(str(path))
    # The version is part of the copy's name, so that a changed file is copied again.
    version = [entry.get(name) for name in ("ETag", "LastModified", "etag", "generation", "updated")]
    root = Path(os.environ.get(COPIES) or "~/.cache/longhaul/copies").expanduser()
    folder = root / hashlib.blake2b(f"{path} {version!r}".encode(), digest_size=12).hexdigest()
    copy = folder / path.name
    if not (copy.is_file() and copy.stat().st_size == _store_info(entry).size):
        with writable(folder, COPIES), replace(copy) as partial, path.open("rb") as source, open(partial, "wb") as file:
            shutil.copyfileobj(source, file, BLOCK)
    return copy


waiting: set[int] = set()  # identifiers of threads that wait for a lock; the watchdog does not count them as hung


@contextlib.contextmanager
def lock(path: Path | epath.Path, on_wait: Callable[[], None] = lambda: None, timeout: float = -1) -> Iterator[None]:
    """Holds an exclusive lock on `path`, whose folder exists, while the block runs.

    If another process holds it, calls `on_wait` once and waits `timeout` seconds, without end if negative. On a disk
    the kernel drops the lock of a killed process. In a store that takes `STALE` seconds, so `timeout` should be longer.
    Errors: filelock.Timeout, OSError.
    """
    held = StoreLock(path) if is_remote(path) else filelock.FileLock(path, thread_local=False)
    try:
        held.acquire(timeout=0)
    except filelock.Timeout:
        if timeout:
            on_wait()
        waiting.add(threading.get_ident())
        try:
            held.acquire(timeout=timeout)
        finally:
            waiting.discard(threading.get_ident())
    try:
        yield
    finally:
        held.release()


class StoreLock:
    """A lock in an object store: an object created exclusively, which its holder rewrites every `BEAT` seconds."""

    def __init__(self, path: epath.Path):
        self._path, self._token, self._beats = path, secrets.token_bytes(8).hex().encode(), 0
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def acquire(self, timeout: float = -1) -> None:
        start = changed = time.monotonic()
        content = b""
        while not self._create():
            now, before, content = time.monotonic(), content, self._read()
            changed = now if content != before else changed
            if content and now - changed > STALE:
                # Two waiters may both delete it: the loser's object is gone at its next beat, which ends that process.
                self._path.unlink(missing_ok=True)
                continue
            if 0 <= timeout <= now - start:
                raise filelock.Timeout(str(self._path))
            time.sleep(POLL)
        self._thread.start()

    def release(self) -> None:
        self._released.set()
        self._thread.join()
        if self._is_mine():
            self._path.unlink(missing_ok=True)

    def _create(self) -> bool:
        with _as_os_error(self._path):
            try:
                filesystem(self._path).pipe_file(str(self._path), self._content(), mode="create")
            except FileExistsError:
                return self._is_mine()  # the client's own retry may follow a write whose answer was lost
        return True

    def _content(self) -> bytes:
        return b"%s %d" % (self._token, self._beats)

    def _read(self) -> bytes:
        try:
            return filesystem(self._path).cat_file(str(self._path))
        except FileNotFoundError:
            return b""

    def _is_mine(self) -> bool:
        return self._read().startswith(self._token)

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._released.wait(BEAT):
            try:
                lost = not self._is_mine()
                if not lost:
                    self._beats, last = self._beats + 1, time.monotonic()
                    filesystem(self._path).pipe_file(str(self._path), self._content())
            except Exception:
                # An unreachable store loses the lock only once others may have taken it.
                lost = time.monotonic() - last > STALE
            if lost:
                print(f"{self._path}: another process has taken over this lock. Stopping.", file=sys.stderr, flush=True)
                os._exit(1)
