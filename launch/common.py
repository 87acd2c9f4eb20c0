"""Options, exit codes and messages that all launchers share."""

import argparse
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

COMMANDS = (
    "train",
    "evaluate",
    "generate",
    "score",
    "fill",
    "embed",
    "attend",
    "probe",
    "describe",
    "plan",
    "goodput",
    "runs",
    "report",
    "prepare",
    "import",
    "export",
)
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
    flags.add_argument("--restarts", type=NATURAL, default=0, metavar="N", help=restarts)
    flags.add_argument(
        "--dry-run", action="store_true", help="check the config, print what would be executed, and do nothing"
    )
    return flags


def add(flags: argparse.ArgumentParser, name: str, default: object, help: str, **more) -> None:
    """Add an option: `True` as a default makes a switch, a number a number, all else text."""
    if default is True:
        flags.add_argument(name, action="store_true", help=help)
        return
    shown = "" if default in (None, []) else f" (default: {default})"
    kind = {int: POSITIVE, float: float}.get(type(default), TEXT)
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
    if options.dry_run and program and program[0] in ("train", "prepare"):
        check_config(program)
    return options, program


def check_config(program: Sequence[str]) -> None:
    """Exit with code 2 if the program would refuse its config, as `pretrain describe` finds without devices."""
    words = zip(program[1:], [*program[2:], ""], strict=True)
    given = [(word, following) for word, following in words if re.match(r"--?config[.=]|--?config$", word)]
    flags = [word if "=" in word else f"{word}={following}" for word, following in given]
    workdir = flag(program, "workdir")
    if workdir and not any(re.match("--?config=", word) for word in flags) and os.path.isdir(workdir):
        flags.append(f"--workdir={workdir}")
    command = [sys.executable, "-m", "pretrain", "describe", "--format=json", *flags]
    done = subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
    if done.returncode == MISTAKE:
        say(reason)
        raise SystemExit(MISTAKE)
    if done.returncode:  # such as a machine that launches without JAX
        say(f"the config is not checked here: {reason}")


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


def like(pattern: str, meaning: str, convert: Callable = str) -> Callable:
    """Type of an option for argparse: text of a pattern, converted."""

    def read(value: str):
        if not re.fullmatch(pattern, value):
            raise argparse.ArgumentTypeError(f"{value!r} is not {meaning}")
        return convert(value)

    return read


def read_slice(value: str) -> tuple[str, tuple[int, ...]]:
    """("v5p", (4, 4, 4)) of v5p:4x4x4."""
    kind, _, sizes = value.partition(":")
    return kind, tuple(map(int, sizes.split("x")))


# Empty values come from unset shell variables.
TEXT = like(r"(?=.*\S)[^\x00-\x1f\x7f]+", "one line of text; is a variable unset?")
NATURAL = like(r"\d+", "a whole number from 0 up", int)
POSITIVE = like(r"0*[1-9]\d*", "a whole number from 1 up", int)
VARIABLE = like(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*", "NAME=VALUE")
SLICE = like(
    r"((v4|v5p):[1-9]\d*x|(v5e|v6e):)[1-9]\d*x[1-9]\d*",
    "a TPU with the shape of its slice in chips, such as v5p:4x4x4 or v5e:8x8",
    read_slice,
)

# More keywords of `--env`, for processes that do not inherit this environment.
ENV = {"type": VARIABLE, "action": "append", "metavar": "NAME=VALUE"}
