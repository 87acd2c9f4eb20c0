"""Folders and object stores whose server is away for a while: what is done there is done again."""

import contextlib
import errno
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from typing import TypeVar

# What a shared folder fails with while its server or the network to it is away, and no longer once that is back.
_AWAY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN}
_AWAY |= {errno.ENETUNREACH, errno.ENETRESET, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN}
_AWAY |= {errno.EAGAIN, errno.ENOLINK, errno.ECOMM}
_BUSY = {"408", "410", "429", "500", "502", "503", "504"}  # what a store answers that may answer otherwise later
# What is in the names of packages' errors of a connection, or of an answer that breaks off.
_LOST = ("Connect", "Timeout", "Payload", "Incomplete", "HTTPClient")
PAUSE, LONGEST = 0.5, 15.0  # seconds before the second attempt, twice as many before each further one, at most
PATIENCE = 180.0  # seconds for which attempts are made

_LASTS = "lasts"  # marks an error of a server that has been asked for as long

Result = TypeVar("Result")
_thread = threading.local()
_vain = False  # whether the last wait was for nothing


def system_code(error: BaseException) -> int | None:
    """The system's number of an error, which TensorStore and libraries in Rust have in their messages."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = re.search(r"os_error_code='(\d+)'|\(os error (\d+)\)", str(error))
    return int(found[1] or found[2]) if found else None


def of_server(error: BaseException) -> BaseException | None:
    """The error of a folder, or an object store, whose server is away: this one, or that of a file it was raised from.

    What a sentence of our own says, or the user's own code raises of a network, is none.
    """
    ours = isinstance(error, ValueError) and type(error) is not ValueError and not isinstance(error, OSError)
    if not ours and (system_code(error) in _AWAY or lost_touch(error)):
        return error
    cause = error.__cause__
    of_file = isinstance(cause, OSError) and cause.filename and not isinstance(error, OSError)
    return of_server(cause) if of_file else None


def passes(error: BaseException) -> bool:
    """Whether an error is of a folder, or an object store, whose server is away, or was raised from one."""
    return of_server(error) is not None


def mode(path: str | os.PathLike, *, follow: bool = True) -> int:
    """What the system says that a path on a disk is (`st_mode`), where a link leads or itself; 0 where nothing is.

    `os.path` takes a folder that is away for one in which nothing is. Errors: OSError of one that is.
    """
    try:
        return os.stat(path, follow_symlinks=follow).st_mode
    except (OSError, ValueError) as error:  # the latter of what can be no path
        if passes(error):
            raise
        return 0


def real(path: str | os.PathLike) -> str:
    """A path on a disk without links, as `os.path.realpath` has it. Errors: OSError of a folder that is away."""
    try:
        return os.path.realpath(path, strict=True)
    except OSError as error:
        if passes(error):
            raise
        return os.path.realpath(path)


def names(folder: str | os.PathLike) -> list[str]:
    """What a folder on a disk has; nothing where it is none or may not be read. Errors: OSError of one that is away."""
    try:
        return os.listdir(folder)
    except OSError as error:
        if passes(error):
            raise
        return []


def files_below(folder: str | os.PathLike, skipped: Container[str] = ()) -> Iterator[str]:
    """The files in a folder on a disk and in those below it that are not called as `skipped`; no links to folders are
    followed, as `os.walk` has it, which takes a folder that is away for an empty one. Errors: OSError of one that is.
    """
    for name in names(folder):
        path = os.path.join(folder, name)
        if stat.S_ISDIR(mode(path, follow=False)):
            yield from () if name in skipped else files_below(path, skipped)
        elif stat.S_ISREG(mode(path)):
            yield path


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """An error of the system within names `path`: that of a file that is open does not know whose it is."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and not error.filename:
            error.filename = os.fspath(path)
        raise


def contents(path) -> bytes:
    """What a file on a disk or in a store has, read again while that is away. Errors: OSError, which names it."""

    def read() -> bytes:
        with naming(str(path)):
            return path.read_bytes()

    return persistently(read)


def persistently(work: Callable[[], Result]) -> Result:
    """`work()`, which may be done again: while it meets a folder that is away, after ever longer pauses.

    The first pause is said on standard error. What else goes wrong, or goes on for `PATIENCE` seconds, is raised, and
    not tried again by who calls this from within such work; in a thread that is in a `hurry` whatever goes wrong. After
    a wait in vain nothing is, of all that a program has still to do before it ends, until some work is done.
    """
    global _vain
    began, pause = time.monotonic(), PAUSE
    while True:
        try:
            done = work()
            _vain = False
            return done
        except Exception as error:
            server = of_server(error)
            if server is None or _vain or getattr(_thread, "hurries", False) or getattr(server, _LASTS, False):
                raise
            if time.monotonic() - began + pause > PATIENCE:
                setattr(server, _LASTS, True)
                _vain = True
                raise
            if pause == PAUSE:
                why, *_ = str(error).strip().splitlines() or [type(error).__name__]
                why = why[:200]
                print(f"trying again for up to {PATIENCE:.0f} s: {why}", file=sys.stderr, flush=True)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)


@contextlib.contextmanager
def hurry() -> Iterator[None]:
    """Within it this thread tries nothing again: it is done at once, or perhaps the next time."""
    before, _thread.hurries = getattr(_thread, "hurries", False), True
    try:
        yield
    finally:
        _thread.hurries = before


def lost_touch(error: BaseException) -> bool:
    """Whether an error is of a store that could not be reached, or is too busy, as packages name it or TensorStore."""
    if isinstance(error, OSError) and error.errno == errno.EBUSY:  # of s3fs: slow down; of a disk it is for good
        return type(error.__cause__).__name__ == "ClientError"
    if isinstance(error, FileNotFoundError) and error.errno is None:  # an upload in parts, which is to be begun again
        return "uploadType=resumable" in str(error) or "(NoSuchUpload)" in str(error.__cause__)  # of gcsfs; of s3fs
    if type(error).__name__ == "HttpError":  # of gcsfs, which has asked six times
        return str(getattr(error, "code", "")) in _BUSY
    names = "".join(kind.__name__ for kind in type(error).__mro__)
    return any(map(names.__contains__, _LOST)) or (isinstance(error, ValueError) and "UNAVAILABLE" in str(error))
