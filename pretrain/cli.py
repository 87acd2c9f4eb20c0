"""The command line: `pretrain COMMAND --flags`, also `python -m pretrain`.

Exit codes: 0 done; 2 a user's mistake (one sentence on stderr); 75 interrupted by SIGTERM, Ctrl-C or the end of its
terminal with everything saved, start the same command again to go on; 69 a process was killed, hangs or computes
wrongly, or a folder is away, start it again too; 130 a second Ctrl-C did not wait for that; 141 the reader of standard
output left before the end; 1 anything else.
"""

import contextlib
import errno
import os
import re
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from input_pipeline.away import of_server
from input_pipeline.files import UNWRITABLE
from pretrain.commands import run
from pretrain.commands.arguments import Arguments
from pretrain.commands.flags import Command, commands, split_config
from pretrain.distributed.init import without_device
from pretrain.distributed.shutdown import FAILED, FAULT, MISTAKE, UNREAD, leaving
from pretrain.elsewhere import COMMANDS
from pretrain.errors import USER_ERRORS, FaultError, UserError, nearest, reason

# What XLA and JAX say of other processes that do not answer: too late, not there, or no longer connected.
LOST_TOUCH = re.compile(r"DEADLINE_EXCEEDED|UNAVAILABLE|Gloo|NCCL|Connection (reset|closed|refused)|Socket closed")
DEVICE_IS_FULL = "RESOURCE_EXHAUSTED: Out of memory"  # how XLA's error begins
UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR)  # names that no file can have, or has


def overview(known: dict[str, Command]) -> str:
    lines = [
        "usage: pretrain COMMAND [flags]      (pretrain COMMAND --help lists the flags)",
        "       pretrain --version",
        "",
    ]
    return "\n".join(lines + [f"  {name:<10} {command.summary}" for name, command in known.items()])


def parse(argv: Sequence[str]) -> Arguments | None:
    """What a command line asks for; None if that is help, which is printed. Errors: UserError."""
    known = commands()
    if not argv or argv[0] in ("help", "-h", "--help"):
        print(overview(known))
        return None
    if argv[0] in ("--version", "-V"):
        print(*(f"{name} {version(name)}" for name in ("longhaul", "jax")), sep=", ")
        return None
    name, *rest = argv
    if name not in known:
        meant = f", did you mean '{COMMANDS[name]}'?" if name in COMMANDS else nearest(name, known)
        raise UserError(f"there is no command '{name}'{meant}")
    if any(a in ("-h", "--help", "-help") for a in rest):
        print(known[name].usage())
        return None
    return known[name].arguments(*split_config(rest))


def main(argv: Sequence[str]) -> int:
    """Runs one command line (without the program's name) and returns its exit code."""
    try:
        arguments = parse(argv)
        return 0 if arguments is None else run(arguments)
    except Exception as error:
        return leaving.failed(*verdict(error))


def verdict(error: Exception) -> tuple[int, str]:
    """The exit code of an exception, and what is printed of it."""
    if isinstance(error, BrokenPipeError):  # standard error survives its reader (pretrain.distributed.streams)
        return UNREAD, ""
    server = of_server(error)
    if server and (isinstance(error, USER_ERRORS) or (isinstance(error, OSError) and error.filename)):
        remedy = "start the same command again once its server answers"
        return FAULT, f"pretrain: cannot use {reason(server)}; {remedy}\n"
    if isinstance(error, USER_ERRORS):
        return MISTAKE, f"pretrain: {error}\n"
    if isinstance(error, FaultError):
        return FAULT, f"pretrain: {error}\n"
    if isinstance(error, OSError) and (unread := _unreadable(error)):
        return MISTAKE, f"pretrain: cannot read {unread}: {error.strerror}; make it readable\n"
    if isinstance(error, OSError) and isinstance(error.filename, str) and _leads_nowhere(error.filename):
        return MISTAKE, f"pretrain: {error.filename} is a link to what is not there; make that, or remove the link\n"
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        where = f" {error.filename}" if error.filename else ""
        remedy = "make room or choose another --workdir and start the command again"
        if not where and not _printed():
            where, remedy = " what is printed", "make room where standard output goes, or send it elsewhere"
        return MISTAKE, f"pretrain: cannot write{where}: {error.strerror}; {remedy}\n"
    if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename:
        return MISTAKE, f"pretrain: cannot use {reason(error)}; move it away, or give another name\n"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and str(error).startswith(DEVICE_IS_FULL)):
        smaller = "lower the batch size (of evaluate: --batch_size), raise config.train.accumulate to train"
        remedy = f"{smaller}, or split the model with config.mesh.fsdp"
        return MISTAKE, f"pretrain: out of memory ({reason(error)}); {remedy}\n"
    if leaving.others and isinstance(error, RuntimeError) and LOST_TOUCH.search(str(error)):
        lost = "the processes of this run have lost touch"
        return FAULT, f"pretrain: {lost} ({reason(error)}); start the same command again\n"
    if isinstance(error, RuntimeError | AssertionError) and (lacking := without_device()):
        return MISTAKE, f"pretrain: {lacking}\n"
    return FAILED, _traceback(error)


def _printed() -> bool:
    """Whether standard output takes what was printed."""
    try:
        print(end="", flush=True)
        return True
    except OSError:
        return False


def _leads_nowhere(path: str) -> bool:
    return os.path.islink(path) and not os.path.exists(path)


def _unreadable(error: OSError) -> Path | None:
    """The file of an error, or the folder on the way to it, that this user may not read; None where that is not why."""
    if error.errno not in (errno.EACCES, errno.EPERM) or not isinstance(error.filename, str):
        return None
    for path in (Path(error.filename), *Path(error.filename).absolute().parents):
        with contextlib.suppress(PermissionError):  # a folder above it is closed
            if path.exists():
                wanted = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
                return None if os.access(path, wanted) else path
    return None


def _traceback(error: Exception) -> str:
    """A bug's traceback, whose last line is the error, which other processes say too.

    Notes, such as those of JAX and Grain about frames that they left out, come before all.
    """
    told = traceback.TracebackException.from_exception(error, compact=True)
    notes, told.__notes__ = told.__notes__ or [], None
    return "".join([*(f"{note}\n" for note in notes), *told.format()])
