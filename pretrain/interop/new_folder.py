"""Folders that are made whole or not at all."""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from input_pipeline.away import system_code
from pretrain.distributed.shutdown import shutdown
from pretrain.errors import UserError, reason
from pretrain.workdir import is_utf8

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk that takes no more answers
LOOKS, LOOK = 100, 0.05  # for what is written behind a signal, and seconds before each
ABSENT = 5  # looks that find nothing, in a row


def check_free(folder: Path) -> None:
    """Raises UserError where `folder` holds anything, or cannot be replaced by a folder that is made beside it."""
    if not is_utf8(str(folder)):
        raise UserError(f"{str(folder)!r} is no name in UTF-8, which the files in it need; choose another folder")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise _taken(folder)
    if folder.is_dir() and (folder.samefile(".") or folder.is_mount()):
        raise UserError(
            f"{folder} is {'where this was started' if folder.samefile('.') else 'where a disk is mounted'}, and what "
            f"is made whole or not at all gets a folder of its own; name a new one in it"
        )


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder`, to be filled, which gets its name when all is well and else is gone, however that ends.

    A link is followed. Errors: UserError where the disk takes no more, or another folder has got the name meanwhile.
    """
    named = folder
    try:
        folder = Path(os.path.realpath(named))
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(f"{named} cannot be made ({reason(error)}); choose another folder") from error
    named_or_removed = threading.Lock()

    def remove() -> None:
        named_or_removed.acquire()  # for good: what is removed gets no name any more
        shutil.rmtree(partial, ignore_errors=True)
        if threading.current_thread() is not threading.main_thread():  # a signal ends the process
            _keep_removed(partial)

    with shutdown.cleanup(remove):
        try:
            yield partial
            _open_to_others(partial)
            with named_or_removed:
                _rename(partial, folder, named)
        except Exception as error:
            if not isinstance(error, UserError) and system_code(error) in FULL:
                raise UserError(f"{named} cannot be written ({reason(error)}); make room or choose another") from error
            raise


def _keep_removed(partial: Path) -> None:
    """Until the threads that still write have found their folder gone, for some seconds at most."""
    absent = 0
    for _ in range(LOOKS):
        time.sleep(LOOK)
        absent = 0 if partial.exists() else absent + 1
        if absent == ABSENT:
            return
        shutil.rmtree(partial, ignore_errors=True)


def _open_to_others(partial: Path) -> None:
    """Gives what libraries make for their user alone the permissions of any new file, besides those that it has."""
    mask = _mask()
    for path in (partial, *partial.rglob("*")):
        usual = (0o777 if path.is_dir() else 0o666) & ~mask
        path.chmod(stat.S_IMODE(path.stat().st_mode) | usual)


def _rename(partial: Path, folder: Path, named: Path) -> None:
    try:
        os.replace(partial, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _taken(named) from error
        raise


def _taken(folder: Path) -> UserError:
    return UserError(f"{folder} is there already, and nothing is overwritten; choose the name of a new folder")


def _mask() -> int:
    """The bits that new files are made without; it can only be asked for by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
