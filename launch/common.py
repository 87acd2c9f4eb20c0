"""Options, exit codes and messages that all launchers share."""

import argparse
import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

COMMANDS = ("train", "evaluate", "generate", "describe", "plan", "goodput", "prepare", "import", "export")
HELP = ("help", "-h", "--help")
MISTAKE = 2  # exit code of a user's mistake: a restart would repeat it
PREEMPTED = 75  # exit code of a program that saved everything and can be restarted
STOPPED = 76  # PREEMPTED because of `--stop`; from a host to its launcher, which ends with PREEMPTED
NOT_RUN = (126, 127)  # a shell's exit codes for a command that is not executable, or missing
FINAL = (0, MISTAKE, STOPPED, *NOT_RUN)  # exit codes after which nothing is restarted
PORT = 28476  # of process 0
IMAGE_FOLDER = "/longhaul"  # of the project in the Dockerfile's image
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")  # topologies of v5e and v6e


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Command-line parser of `python -m launch.NAME`."""
    return argparse.ArgumentParser(
        prog=f"python -m launch.{name}",
        usage="%(prog)s [options] -- COMMAND --flags",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_shared(flags: argparse.ArgumentParser, env: bool = False) -> None:
    """Add `--restarts`, `--dry-run` and, for processes that do not inherit this environment, `--env`."""
    restarts = "restart up to N times after a preemption or a fault, never after a user's mistake (default: 0)"
    flags.add_argument("--restarts", type=natural, default=0, metavar="N", help=restarts)
    flags.add_argument("--dry-run", action="store_true", help="print what would be executed, and do nothing")
    if env:
        help = "a variable of the program's environment; repeatable"
        flags.add_argument("--env", type=variable, action="append", default=[], metavar="NAME=VALUE", help=help)


def parse(
    flags: argparse.ArgumentParser, argv: Sequence[str], standalone: Sequence[str] = ()
) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into the launcher's options and the program's arguments.

    No program is needed if one of the `standalone` options is set. Exits with code 2 on a mistake.
    """
    split = argv.index("--") if "--" in argv else len(argv)
    options, program = flags.parse_args(argv[:split]), list(argv[split + 1 :])
    if not program and not any(getattr(options, option) for option in standalone):
        flags.error("no program. Write a command after '--', such as: -- train --config=configs/quickstart.py")
    # Checked here: a job may wait hours in a queue before the program itself could refuse the command.
    if program and program[0] not in (*COMMANDS, *HELP):
        close = difflib.get_close_matches(program[0], COMMANDS, n=1) or [f"one of {', '.join(COMMANDS)}"]
        flags.error(f"'{program[0]}' is not a command of pretrain; did you mean {close[0]}?")
    return options, program


def flag(program: Sequence[str], name: str, default: str = "") -> str:
    """Value of one of the program's flags, written as `--name=value` or `--name value`."""
    for word, following in zip(program, [*program[1:], ""], strict=False):
        key, equals, value = word.partition("=")
        if key.lstrip("-") == name and key.startswith("-"):
            return value if equals else following
    return default


def environment(coordinator: str, processes: int, index: int) -> dict[str, str]:
    """Environment by which process `index` finds the others."""
    return {
        "LONGHAUL_COORDINATOR": coordinator,
        "LONGHAUL_PROCESSES": str(processes),
        "LONGHAUL_PROCESS": str(index),
        "PYTHONUNBUFFERED": "1",
    }


def require(tool: str) -> None:
    """Exit with code 2 if a command of the cluster is not installed."""
    if not shutil.which(tool):
        say(f"'{tool}' is not installed here. Install it, or add --dry-run to see what would run.")
        raise SystemExit(MISTAKE)


def emit(stream: TextIO, data: bytes) -> None:
    """Print, without failing if the reader has gone: the run must continue."""
    try:
        stream.flush()
        stream.buffer.write(data)
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(message: str) -> None:
    """Print a message of the launcher on standard error."""
    emit(sys.stderr, f"launch: {message}\n".encode(errors="replace"))


def show(commands: Sequence[Sequence[str]]) -> None:
    """Print commands as a shell takes them, for `--dry-run`."""
    for command in commands:
        print(shlex.join(command))


def hints(program: Sequence[str], watch: str, stop: str, resume: str = "the same command again") -> None:
    """Say how to watch, stop and resume the run."""
    say(f"watch: {watch}")
    if program[0] == "train":
        workdir = flag(program, "workdir", "WORKDIR")
        say(f"curves: tensorboard --logdir={shlex.quote(f'{workdir}/metrics')}")
        say(f"where the time goes: pretrain goodput --workdir={shlex.quote(workdir)}")
    say(f"stop with everything saved: {stop}")
    say(f"resume: {resume}")


# Types of options, for argparse.


def text(value: str) -> str:
    """One line of text. Empty values come from unset shell variables and are refused."""
    if not value.strip() or not value.isprintable():
        raise argparse.ArgumentTypeError(f"{value!r} is empty or not one line; is a variable unset?")
    return value


def natural(value: str) -> int:
    """A whole number from 0 up."""
    if not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number from 0 up")
    return int(value)


def positive(value: str) -> int:
    """A whole number from 1 up."""
    if not value.isdecimal() or int(value) == 0:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number from 1 up")
    return int(value)


def variable(value: str) -> str:
    """NAME=VALUE of an environment."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*", value):
        raise argparse.ArgumentTypeError(f"{value!r} is not NAME=VALUE")
    return value
