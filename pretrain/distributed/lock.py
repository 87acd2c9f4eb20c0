"""One writer at a time in a work folder: a file names who it is, and shows that it lives.

The file `lock` is created exclusively, which is atomic on network file systems too. Its holder touches it every few
seconds. Whoever finds it looks up the holder among the processes, where that is the same machine (and the same
container): one that was killed is noticed at once. A holder elsewhere is watched for a sign of life; only changes
count, so clocks may differ. So is one whose lock names another folder, of which this one may be a copy. A clean end
removes the file.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from input_pipeline.away import hurry, passes, persistently
from input_pipeline.files import from_json
from input_pipeline.remote import RemotePath, at
from pretrain.distributed.consensus import gathered
from pretrain.distributed.shutdown import MISTAKE, leaving
from pretrain.errors import UserError, reason
from pretrain.workdir import Workdir, gone, write

BEAT = 5.0  # seconds between two signs of life
TURN = 0.2  # seconds between two looks of one that waits for its turn
SHOWS = 5.0  # seconds within which a network shows a new file to the others
COPY = 15.0  # seconds without one after which a lock of another folder counts as copied
PATIENCE = (
    60.0  # seconds without one after which a holder elsewhere counts as dead: network caches are that old at most
)


@contextlib.contextmanager
def held(workdir: str, command: str, report: Callable[[str], None], *, in_turn: bool = False) -> Iterator[None]:
    """Holds the work folder while the block runs; makes the folder if need be.

    `command` is what the others are told that goes on here; `report` hears of waiting. `in_turn` waits for another
    process that does the same. UserError: another process holds the folder, or it cannot be written.
    """
    folder = at(workdir)
    made = not persistently(folder.exists)
    try:
        persistently(lambda: folder.mkdir(parents=True, exist_ok=True))
        opened = persistently(lambda: _opened(folder))
        mine = json.dumps(
            {
                "command": command,
                "host": socket.gethostname(),
                "process": os.getpid(),
                "since": time.strftime("%Y-%m-%d %H:%M:%S"),
                "started": _started(os.getpid()),
                "place": _place(),
                "folder": _identity(folder),
                "token": secrets.token_hex(8),
            }
        )
        persistently(lambda: _take(Workdir(folder).lock, mine, report, in_turn))
    except OSError as error:
        if passes(error):
            raise
        raise UserError(f"the work folder cannot be written ({reason(error)}); choose another --workdir") from error
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(Workdir(folder).lock, mine, opened, ended), daemon=True)
    beating.start()

    def give_back() -> None:
        ended.set()
        if beating is not threading.current_thread():
            beating.join()
        with contextlib.suppress(OSError), hurry():  # a folder that is gone, or in trouble, has told its story
            if _read(Workdir(folder).lock) == mine:
                Workdir(folder).lock.unlink()
            if made:
                folder.rmdir()  # only where nothing came of it: a refused command leaves no empty folder behind

    try:
        with leaving.after(give_back):
            try:
                yield
            except Exception as error:
                if _moved(folder, opened):  # which is why, whatever was missed first
                    raise UserError(gone(folder)) from error
                raise
            if _moved(folder, opened):
                raise UserError(gone(folder))
    finally:  # not where it is given back, which another thread may do while this one still asks
        if opened is not None:
            with contextlib.suppress(OSError):  # of a server that is away: nothing was written by it
                os.close(opened)


def check_shared(workdir: str) -> None:
    """Raises UserError in every process of a run unless each finds the lock that process 0 holds: it is one folder.

    Errors: OSError where that stays away.
    """

    def found() -> str | None:
        try:
            return persistently(lambda: _read(Workdir(workdir).lock))
        except OSError as error:
            if passes(error):
                raise
            return None  # such as a path through a file

    held, until = gathered(found())[0], time.monotonic() + SHOWS
    while found() != held and time.monotonic() < until:
        time.sleep(TURN)
    for index, (finds, there) in enumerate(gathered([found() == held, workdir])):
        if finds:
            continue
        raise UserError(
            f"process {index} does not find in --workdir={there} what process 0 writes in its own; give all processes "
            "of a run the same folder, on a file system that they share"
        )


def _take(path: Path, mine: str, report: Callable[[str], None], in_turn: bool) -> None:
    told = False
    while True:
        try:
            _create(path, mine)
            return
        except FileExistsError:
            found = _read(path)
        if found is None:
            if not isinstance(path, RemotePath) and path.is_symlink():
                raise UserError(f"{path} is a link to a file that is not there; remove it")
            continue  # given back just now
        if _lives(path, found, report):
            if not in_turn or _holder(found)["command"] != _holder(mine)["command"]:
                raise UserError(_in_use(path, found))
            if not told:
                report(f"waiting for {_name(_holder(found))}")
                told = True
            time.sleep(TURN)
            continue
        with _one_at_a_time(path.parent):
            if _read(path) == found:  # else another has taken it over meanwhile
                path.unlink()


def _create(path: Path, mine: str) -> None:
    """Raises FileExistsError where there is a lock; one that a full disk cuts short is not left behind."""
    if isinstance(path, RemotePath):
        path.create(mine.encode())
        return
    with open(path, "x") as file:
        try:
            file.write(mine)
            file.flush()
        except OSError:
            path.unlink()
            raise


def _lives(path: Path, found: str, report: Callable[[str], None]) -> bool:
    """Whether the holder that left the text `found` is still at work."""
    holder, patience, why = _holder(found), PATIENCE, "which cannot be asked from here"
    if holder["place"] and holder["place"] == _place():
        if holder["started"] is None or _started(holder["process"]) != holder["started"]:
            return False
        if holder["folder"] == _identity(path.parent):
            return True
        # Not certain: some file systems of networks number a folder anew.
        patience, why = COPY, "or is a copy of the folder that was"
    report(f"{path.parent} was last used by {_name(holder)}, {why}; waiting up to {patience:.0f} s for a sign of life")
    before, until = _sign(path), time.monotonic() + patience
    while time.monotonic() < until:
        time.sleep(min(BEAT, patience) / 5)
        if _sign(path) != before:
            return _read(path) is not None
    return False


def _beat(path: Path, mine: str, opened: int | None, ended: threading.Event) -> None:
    """Shows that the holder lives; ends the process if another has taken over, as it may after a long suspension.

    And if the folder is no longer where it was: what is saved from now on would not be beside the rest.
    """
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError), hurry():  # a server that does not answer: perhaps the next time
            found = _read(path)
            if _moved(path.parent, opened):
                leaving.leave(MISTAKE, gone(path.parent))
            elif found is None:
                _create(path, mine)
            elif found == mine:
                _touch(path, mine)
            else:
                # As a kill would: saving now would spoil the other's run.
                leaving.leave(MISTAKE, f"{_in_use(path, found)}; this process has stopped at once")


def _touch(path: Path, mine: str) -> None:
    if isinstance(path, RemotePath):
        write(path, mine.encode())
    else:
        os.utime(path)


def _opened(folder: Path) -> int | None:
    """What goes on meaning this folder wherever it is moved to; None of an object store, where nobody moves it."""
    return None if isinstance(folder, RemotePath) else os.open(folder, os.O_RDONLY)


def _moved(folder: Path, opened: int | None) -> bool:
    """Whether the folder that was `opened` is no longer where it was; another may be there, such as a copy of it.

    Both are asked for now, since some file systems of networks number a folder anew.
    """
    if opened is None:
        return False
    try:
        there = os.fstat(opened)
        return _identity(folder) != [there.st_dev, there.st_ino]
    except OSError:  # of a file system that is away, which is not known
        return False


def _in_use(path: Path, found: str) -> str:
    return (
        f"{path.parent} is in use by {_name(_holder(found))}; wait for it to end or stop it, or choose another "
        f"--workdir (if it has certainly ended, remove {path})"
    )


def _name(holder: dict) -> str:
    return f"`pretrain {holder['command']}` on {holder['host']}, process {holder['process']}, since {holder['since']}"


def _holder(found: str) -> dict:
    """What a lock says of its holder; one that is only half written has no place yet, and is watched."""
    unknown = dict.fromkeys(("command", "host", "process", "since"), "?") | {
        "started": None,
        "place": "",
        "folder": None,
    }
    try:
        return unknown | from_json(found)
    except (ValueError, TypeError):
        return unknown


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")  # bytes that are no text name no holder
    except FileNotFoundError:
        return None


def _sign(path: Path) -> int | str | None:
    """When the lock was touched last, by the file system's clock; it is opened so that a network's server is asked."""
    if isinstance(path, RemotePath):
        return path.sign()
    try:
        with open(path) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _identity(folder: Path) -> list[int] | str | None:
    """What tells a folder from every other of this machine, whatever its name; None where there is none.

    In an object store that is its name: nobody moves it.
    """
    if isinstance(folder, RemotePath):
        return str(folder)
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return [found.st_dev, found.st_ino]


def _place() -> str:
    """Names the table of processes that this one is in: machine, boot and container. Empty where Linux is not."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(process: int) -> int | None:
    """When a process of this machine started, in ticks since boot, which tells it from a later one of its number.

    None where it has ended, if only its parent does not know yet.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else int(started)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Keeps two that found the same dead holder apart, where the file system locks folders: no object store does.

    There the one of two that finds the lock to be the other's stops, as after a suspension.
    """
    if isinstance(folder, RemotePath):
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
