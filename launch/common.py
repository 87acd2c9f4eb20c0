"""Options, exit codes and messages that all launchers share."""

import argparse
import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
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


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Command-line parser of `python -m launch.NAME`, with the options of all launchers."""
    flags = argparse.ArgumentParser(
        prog=f"python -m launch.{name}",
        usage="%(prog)s [options] -- COMMAND --flags",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    restarts = "restart up to N times after a preemption or a fault, never after a user's mistake (default: 0)"
    flags.add_argument("--restarts", type=natural, default=0, metavar="N", help=restarts)
    flags.add_argument("--dry-run", action="store_true", help="print what would be executed, and do nothing")
    return flags


def add(flags: argparse.ArgumentParser, name: str, default: object, help: str, **more) -> None:
    """Add an option: `True` as a default makes a switch, a number a number, all else text."""
    if default is True:
        flags.add_argument(name, action="store_true", help=help)
        return
    shown = "" if default in (None, []) else f" (default: {default})"
    kind = {int: positive, float: float}.get(type(default), text)
    flags.add_argument(name, **{"type": kind, "default": default, "help": help + shown} | more)


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


def natural(value: str, least: int = 0) -> int:
    """A whole number from `least` up."""
    if not value.isdecimal() or int(value) < least:
        raise argparse.ArgumentTypeError(f"{value!r} is not a whole number from {least} up")
    return int(value)


def positive(value: str) -> int:
    """A whole number from 1 up."""
    return natural(value, least=1)


def topology(value: str, dims: Mapping[str, int]) -> tuple[str, tuple[int, ...]]:
    """(TPU, shape) of a slice, such as v5p:4x4x4; `dims` has the number of sizes by TPU."""
    kind, _, sizes = value.partition(":")
    shape = tuple(int(size) for size in sizes.split("x") if size.isdecimal())
    if kind not in dims or len(shape) != dims[kind] or sizes != "x".join(map(str, shape)) or 0 in shape:
        known = ", ".join(f"{name}:{'x'.join('4' * count)}" for name, count in dims.items())
        raise argparse.ArgumentTypeError(f"{value} is not a TPU with the shape of its slice in chips, such as {known}")
    return kind, shape


def variable(value: str) -> str:
    """NAME=VALUE of an environment."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*", value):
        raise argparse.ArgumentTypeError(f"{value!r} is not NAME=VALUE")
    return value


# More keywords of `--env`, for processes that do not inherit this environment.
VARIABLE = {"type": variable, "action": "append", "metavar": "NAME=VALUE"}
