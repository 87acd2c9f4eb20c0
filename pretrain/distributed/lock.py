"""One writer at a time in a work folder: a lock, and next to it a note of who holds it."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator

import filelock

from input_pipeline import io
from pretrain.distributed.consensus import allgather_json
from pretrain.distributed.shutdown import shutdown
from pretrain.errors import UserError
from pretrain.workdir import Workdir

# Seconds within which a network file system shows a new file to other hosts.
VISIBLE = 5.0


@contextlib.contextmanager
def hold_workdir(workdir: str, command: str, report: Callable[[str], None], *, queue: bool = False) -> Iterator[None]:
    """Holds the work folder, which is created if absent, while the block runs.

    `queue` waits for a process that runs the same command. Errors: UserError, if another process holds the folder.
    """
    here = Workdir(workdir)
    wait = queue and read_holder(here).get("command") == command
    # In a store only silence shows that a holder is dead, so a refusal there takes as long.
    timeout = -1 if wait else 1.5 * io.STALE if here.remote else 0
    with contextlib.ExitStack() as stack:
        try:
            io.make_folder(here.path)
            stack.enter_context(io.lock(here.lock, lambda: report(f"waiting for {_describe(here)}"), timeout))
        except filelock.Timeout:
            raise UserError(f"--workdir={workdir}: in use by {_describe(here)}. Stop it, or choose another.") from None
        except OSError as error:
            raise UserError(f"--workdir={workdir}: cannot be written ({error.strerror}). Choose another.") from error
        note = {"command": command, "host": socket.gethostname(), "process": os.getpid()}
        io.write_json(_note(here), note | {"since": time.strftime("%Y-%m-%d %H:%M:%S")})
        stack.callback(_note(here).unlink, missing_ok=True)
        # A signal ends the process without leaving the block.
        with shutdown.cleanup(stack.close):
            yield


def check_shared(workdir: str) -> None:
    """Raises UserError in every process of a run unless all see the note that process 0 wrote: it is one folder."""
    here, until = Workdir(workdir), time.monotonic() + VISIBLE
    expected = allgather_json(read_holder(here))[0]
    while read_holder(here) != expected and time.monotonic() < until:
        time.sleep(0.2)
    seen = allgather_json(read_holder(here) == expected)
    if not all(seen):
        index = seen.index(False)
        raise UserError(f"--workdir={workdir}: process {index} sees another folder. Use a shared one.")


def _note(here: Workdir):
    return here.path / "lock.json"


def read_holder(here: Workdir) -> dict:
    """The note of the process that holds the folder; empty if there is none."""
    try:
        return json.loads(_note(here).read_bytes())
    except (OSError, ValueError):
        return {}


def _describe(here: Workdir) -> str:
    """The holder's command, host and process, as far as its note is there."""
    holder = read_holder(here)
    if not holder:
        return "another process"
    return f"`pretrain {holder['command']}` on {holder['host']}, process {holder['process']}, since {holder['since']}"
