"""Files in an object store, `gs://` or `s3://`, by the methods of `pathlib.Path` that the project uses.

An object appears whole or not at all, and a folder is but the beginning of some names. So nothing can be renamed,
appended to, locked by the kernel or mapped into memory: `files.py` says what is done instead. What a store cannot
answer, for want of leave or credentials, is a RemoteError; while it cannot be reached it is asked again (`away.py`).
"""

import contextlib
import dataclasses
import errno
import fnmatch
import functools
import hashlib
import io
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from input_pipeline.away import passes, persistently
from input_pipeline.errors import DataError, UnwritableError

SCHEMES = {"gs": "gcsfs", "s3": "s3fs"}  # and the package that reads each; the extras are named as the schemes
ENDPOINTS = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}  # name a store of another place
BLOCK = 1 << 22  # bytes read ahead
SILENCE, LONGEST = 20.0, 600.0  # seconds for which gcsfs waits for an answer, or for more of it; and for all of it
COPIES = "LONGHAUL_COPIES"  # names the folder of local copies


class RemoteError(OSError, DataError):
    """What an object store refuses to do. Of one that cannot be reached it is a TimeoutError, as of a disk's server."""

    def __init__(self, path: object, why: str):
        OSError.__init__(self, errno.EACCES, why, str(path))
        self.said = f"{path} cannot be reached ({why}); check the bucket's name, the credentials and the network"

    def __reduce__(self):
        return RemoteError, (self.filename, self.strerror)

    def __str__(self) -> str:
        return self.said


class Stat(NamedTuple):
    """What `Path.stat` says of a file, as far as it is asked for."""

    st_size: int
    st_mtime_ns: int


def is_remote(name: object) -> bool:
    """Whether a path, or its name, is one of an object store."""
    return isinstance(name, RemotePath) or "://" in str(name)


def at(name: "str | Path | RemotePath") -> "Path | RemotePath":
    """The path of that name, be it on a disk or in an object store. Errors: DataError for a store of another kind."""
    if not is_remote(name):
        return Path(name)
    scheme, _, key = str(name).partition("://")
    if scheme not in SCHEMES:
        raise DataError(f"{name} is in no store that is known; write one of: {', '.join(f'{s}://' for s in SCHEMES)}")
    if not key.strip("/"):
        raise DataError(f"{name} names no bucket; write {scheme}://BUCKET/FOLDER")
    return RemotePath(scheme, PurePosixPath(key.strip("/")))


def _system(scheme: str):
    """The library's view of all stores of a scheme."""
    return _opened(scheme, os.environ.get(ENDPOINTS[scheme]) or None)


@functools.cache
def _opened(scheme: str, endpoint: str | None):
    package = SCHEMES[scheme]
    if scheme == "gs":  # else gcsfs, for Orbax too, asks what kind a bucket is, and warns each time that it may not
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    try:
        import aiohttp
        import fsspec

        __import__(package)
    except ImportError:
        raise DataError(
            f"{scheme}:// needs the package {package}; in the clone, pip install -e '.[{scheme}]'"
        ) from None
    if scheme == "gs":  # else gcsfs, for Orbax too, waits for ever
        patience = aiohttp.ClientTimeout(LONGEST, sock_connect=SILENCE, sock_read=SILENCE)
        fsspec.config.conf.setdefault(scheme, {}).setdefault("requests_timeout", patience)
    place = {"endpoint_url": endpoint} if endpoint else {}
    return fsspec.filesystem(scheme, use_listings_cache=False, **place)  # other processes write there too


@contextlib.contextmanager
def _asking(path: "RemotePath") -> Iterator[None]:
    """What goes wrong within, as an OSError that names `path`."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # the packages raise those of their own libraries
        if isinstance(error, TimeoutError) and error.filename == str(path):
            raise  # of what was asked within
        why, *_ = str(error).strip().splitlines() or [type(error).__name__]
        if passes(error):
            raise TimeoutError(errno.ETIMEDOUT, why[:200], str(path)) from error
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
        if isinstance(error, FileExistsError):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        raise RemoteError(path, why[:200]) from error


@dataclasses.dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder of an object store; `key` begins with the bucket's name."""

    scheme: str
    key: PurePosixPath

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    def __truediv__(self, name: str | PurePosixPath) -> "RemotePath":
        return dataclasses.replace(self, key=self.key / str(name))

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def stem(self) -> str:
        return self.key.stem

    @property
    def suffix(self) -> str:
        return self.key.suffix

    @property
    def parent(self) -> "RemotePath":
        return dataclasses.replace(self, key=self.key.parent)

    @property
    def parents(self) -> "list[RemotePath]":
        return [dataclasses.replace(self, key=key) for key in self.key.parents if key.name]

    def with_name(self, name: str) -> "RemotePath":
        return dataclasses.replace(self, key=self.key.with_name(name))

    def with_suffix(self, suffix: str) -> "RemotePath":
        return dataclasses.replace(self, key=self.key.with_suffix(suffix))

    def relative_to(self, other: "RemotePath") -> PurePosixPath:
        return self.key.relative_to(other.key)

    def is_relative_to(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other.scheme == self.scheme and self.key.is_relative_to(other.key)

    def absolute(self) -> "RemotePath":
        return self

    expanduser = absolute

    def _ask(self, work: Callable) -> Any:
        """`work` of the library's view of this store, done again while that cannot be reached. Errors: OSError."""

        def asked():
            with _asking(self):
                return work(_system(self.scheme))

        return persistently(asked)

    def _info(self) -> dict | None:
        try:
            return self._ask(lambda system: system.info(str(self.key)))
        except FileNotFoundError:
            return None

    def exists(self) -> bool:
        return self._info() is not None

    def is_file(self) -> bool:
        return (self._info() or {}).get("type") == "file"

    def is_dir(self) -> bool:
        return (self._info() or {}).get("type") == "directory"

    def stat(self) -> Stat:
        found = self._info()
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return _stat(found)

    def sign(self) -> str | None:
        """What is another after every writing, even of the same bytes; None where nothing is there."""
        return _sign(self._info())

    def iterdir(self) -> "Iterator[RemotePath]":
        found = self._ask(lambda system: system.ls(str(self.key), detail=False))
        for name in sorted(found):
            if PurePosixPath(name) != self.key:  # some tools leave an object of the folder's own name
                yield dataclasses.replace(self, key=PurePosixPath(name))

    def glob(self, pattern: str) -> "Iterator[RemotePath]":
        """What lies right in this folder and has a name like `pattern`."""
        with contextlib.suppress(FileNotFoundError):
            yield from (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def rglob(self, pattern: str) -> "Iterator[RemotePath]":
        """The files below this folder that have a name like `pattern`."""
        found = self._ask(lambda system: system.find(str(self.key)))
        for name in sorted(found):
            path = dataclasses.replace(self, key=PurePosixPath(name))
            if fnmatch.fnmatchcase(path.name, pattern):
                yield path

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a folder is there as soon as something is in it."""
        if not exist_ok and self.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))

    def rmdir(self) -> None:
        """Nothing, where nothing is in it."""
        if self.is_dir():
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(self))

    def unlink(self, missing_ok: bool = False) -> None:
        if not self.is_file():
            if missing_ok:
                return
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        with _asking(self):  # once: where only an answer is lost, another may have made the next meanwhile
            _system(self.scheme).rm_file(str(self.key))

    def remove_tree(self) -> None:
        """Deletes all files below this folder."""
        with contextlib.suppress(FileNotFoundError):
            self._ask(lambda system: system.rm(str(self.key), recursive=True))

    def copy_tree(self, to: "RemotePath") -> None:
        """Copies all files below this folder, within the store."""

        def copy(system) -> None:
            for name in system.find(str(self.key)):
                system.cp_file(name, str(to.key / PurePosixPath(name).relative_to(self.key)))

        self._ask(copy)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Its bytes, to be read."""
        return io.BufferedReader(_Bytes(self), BLOCK)

    def read_bytes(self) -> bytes:
        return self._ask(lambda system: system.cat_file(str(self.key)))

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, data: bytes) -> None:
        with _writing(self):
            self._ask(lambda system: system.pipe_file(str(self.key), data))

    def put(self, file: Path) -> None:
        """Writes what is in a local file."""
        with _writing(self):
            self._ask(lambda system: system.put_file(str(file), str(self.key)))

    def create(self, data: bytes) -> None:
        """Writes a small file that is not there yet, of `data` that nobody else writes. Errors: FileExistsError.

        Where the same are there already, it was made and only the answer lost.
        """
        try:
            with _writing(self):
                self._ask(lambda system: system.pipe_file(str(self.key), data, mode="create"))
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if self.read_bytes() == data:
                    return
            raise


class _Bytes(io.RawIOBase):
    """The bytes of an object, asked for a block at a time."""

    def __init__(self, path: RemotePath):
        self._path, self.name = path, str(path)
        how = {"mode": "rb", "block_size": BLOCK, "cache_type": "readahead"}
        self._file = path._ask(lambda system: system.open(str(path.key), **how))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer) -> int:
        data = self._path._ask(lambda system: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextlib.contextmanager
def _writing(path: RemotePath) -> Iterator[None]:
    """As `_asking`; what is not found where something is written is the bucket."""
    try:
        with _asking(path):
            yield
    except FileNotFoundError as error:
        raise RemoteError(path, "there is no such bucket") from error


def _sign(found: dict | None) -> str | None:
    return found and repr([found.get(name) for name in ("ETag", "LastModified", "etag", "generation", "updated")])


def _stat(found: dict) -> Stat:
    changed = found.get("LastModified") or found.get("mtime") or found.get("updated")
    return Stat(int(found["size"] or 0), int(changed.timestamp() * 1e9) if hasattr(changed, "timestamp") else 0)


def matching(pattern: str) -> dict[str, Stat]:
    """The files of an object store whose names match a glob, `**` too, in their order: one listing for all."""
    path = at(pattern)
    try:
        found = path._ask(lambda system: system.glob(str(path.key), detail=True))
    except FileNotFoundError:  # a bucket that is not there, as gcsfs has it
        return {}
    return {f"{path.scheme}://{name}": _stat(found[name]) for name in sorted(found) if found[name]["type"] == "file"}


def local(path: "Path | RemotePath", anew: bool = False) -> Path:
    """A file on this machine: `path` itself, or a copy of the remote one, which is made once and kept.

    Copies lie in the folder that LONGHAUL_COPIES names, by default ~/.cache/longhaul/copies; they may be deleted
    whenever no run reads them. With `anew` one is made again. Errors: FileNotFoundError where there is no such file.
    """
    if not isinstance(path, RemotePath):
        return path
    found = path._info()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    root = Path(os.environ.get(COPIES) or "~/.cache/longhaul/copies").expanduser()
    folder = root / hashlib.blake2b(f"{path} {_sign(found)}".encode(), digest_size=12).hexdigest()
    copy = folder / path.name
    if anew or not (copy.is_file() and copy.stat().st_size == _stat(found).st_size):
        partial = folder / f"{path.name}.{secrets.token_hex(4)}.partial"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open() as source, open(partial, "wb") as file:
                shutil.copyfileobj(source, file, BLOCK)
                file.flush()
                os.fsync(file.fileno())  # else a machine that loses power may have the name and not the bytes
            os.replace(partial, copy)
        except OSError as error:
            if isinstance(error, RemoteError) or passes(error):
                raise
            raise UnwritableError(Path(error.filename or copy), error.strerror or str(error), COPIES) from None
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
    return copy
