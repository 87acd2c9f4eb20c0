"""What starts the program on many machines or processes; it emits `python -m pretrain ...` and nothing else.

Every launcher is called as `python -m launch.NAME [its options] -- COMMAND --flags`: what follows `--` is handed to
`python -m pretrain` unchanged. The processes of one run find one another by three environment variables:

    LONGHAUL_COORDINATOR  address:port of process 0, or "auto" where JAX finds the others by itself (TPU pods)
    LONGHAUL_PROCESSES    how many there are
    LONGHAUL_PROCESS      which of them this is, from 0
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence

PREEMPTED = 75  # exit code of a program that was asked to stop and has saved everything: start it again


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The command-line parser of `python -m launch.NAME`."""
    return argparse.ArgumentParser(
        prog=f"python -m launch.{name}",
        usage="%(prog)s [options] -- COMMAND --flags",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The launcher's own options, and the arguments after `--` for the program; exits with code 2 on a mistake."""
    at = argv.index("--") if "--" in argv else len(argv)
    options, stray = parser.parse_known_args(argv[:at])
    program = list(argv[at + 1 :])
    if stray and not program:
        parser.error(f"'{stray[0]}' is no option of this launcher; if the program begins there, write '--' before it")
    if stray:
        parser.error(f"unrecognized arguments: {shlex.join(stray)}; what comes after '--' goes to the program")
    if not program:
        parser.error("name what to run after '--', such as: -- train --config=configs/quickstart.py --workdir=runs/q")
    return options, program


def positive(text: str) -> int:
    """An argparse type: a whole number above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def run(command: Sequence[str], stdin: str = "") -> int:
    """Runs a command of the cluster's own tools and returns its exit code; 2 and a sentence if it is not installed."""
    try:
        return subprocess.run(command, input=stdin or None, text=True).returncode
    except FileNotFoundError:
        print(
            f"launch: '{command[0]}' is not installed here; run this where it is, or see with --dry-run what it does",
            file=sys.stderr,
        )
        return 2


def show(command: Sequence[str]) -> None:
    """Prints a command as it would be typed."""
    print(shlex.join(command))
