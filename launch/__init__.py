"""What starts the program on many machines or processes; it emits `python -m pretrain ...` and nothing else.

Every launcher is called as `python -m launch.NAME [its options] -- COMMAND --flags`: what follows `--` is handed to
`python -m pretrain` unchanged. The processes of one run find one another by three environment variables:

    LONGHAUL_COORDINATOR  address:port of process 0, or "auto" where JAX finds the others by itself (TPU pods)
    LONGHAUL_PROCESSES    how many there are
    LONGHAUL_PROCESS      which of them this is, from 0
"""

import argparse
import difflib
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("train", "evaluate", "generate", "describe", "plan", "goodput", "prepare", "import", "export")
HELP = ("help", "-h", "--help")
PREEMPTED = 75  # exit code of a program that was asked to stop and has saved everything: start it again
MISTAKE = 2  # exit code of a user's mistake: starting it again would not help
STOPPED = 76  # as PREEMPTED, where `--stop` asked; between `launch.keeper` and its launcher, which ends with PREEMPTED
LONGEST = 100_000  # bytes of a command with its environment: Linux takes 128 KiB in one word, as ssh is given it
PORT = 28476  # of process 0, where the others find it
IMAGE_FOLDER = "/longhaul"  # of the project in the image that the Dockerfile makes
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")  # the topologies of v5e and v6e, which have no cubes
NOT_RUN = (126, 127)  # a shell's exit codes where a command is not executable, or not there: no help either


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The command-line parser of `python -m launch.NAME`."""
    return argparse.ArgumentParser(
        prog=f"python -m launch.{name}",
        usage="%(prog)s [options] -- COMMAND --flags",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str], without: Sequence[str] = ()
) -> tuple[argparse.Namespace, list[str]]:
    """The launcher's own options, and the arguments after `--` for the program; exits with code 2 on a mistake.

    One of the options `without`, which are called as in the namespace, asks for something that needs no program.
    """
    at = argv.index("--") if "--" in argv else len(argv)
    if empty := _empty(argv[:at]):
        parser.error(f"{empty} is given without a value; write one, or leave it out (is a variable unset?)")
    options, stray = parser.parse_known_args(argv[:at])
    program = list(argv[at + 1 :])
    if stray and not program:
        parser.error(f"'{stray[0]}' is no option of this launcher; if the program begins there, write '--' before it")
    if stray:
        own = [f"--{name.replace('_', '-')}" for name in vars(options)]
        close = difflib.get_close_matches(stray[0].partition("=")[0], own, n=1)
        meant = f"did you mean {close[0]}?" if close else "what comes after '--' goes to the program"
        parser.error(f"unrecognized arguments: {shlex.join(stray)}; {meant}")
    if not program and not any(getattr(options, option) for option in without):
        parser.error("name what to run after '--', such as: -- train --config=configs/quickstart.py --workdir=runs/q")
    if program and Path(program[0]).name in ("pretrain", "python", "python3"):
        parser.error(f"'{program[0]}' is started by the launcher itself; write the command alone, such as: -- train")
    if program and program[0] not in (*COMMANDS, *HELP):  # said here, not by a job that waited for its machines
        close = difflib.get_close_matches(program[0], COMMANDS, n=1) or [f"one of {', '.join(COMMANDS)}"]
        parser.error(f"there is no command '{program[0]}' to run; did you mean {close[0]}?")
    size = len(shlex.join([*program, *getattr(options, "env", [])]).encode(errors="surrogateescape"))
    if size > LONGEST:
        parser.error(
            f"the command is {size:,} bytes long, and hosts take {LONGEST:,}; put what it says into a config file"
        )
    return options, program


def _empty(argv: Sequence[str]) -> str:
    """The first option whose value has nothing in it, as a shell makes it of a variable that is not set."""
    for before, word in zip(["", *argv], argv, strict=False):
        name, equals, value = word.partition("=")
        if not word.strip() and before.startswith("--"):
            return before
        if word.startswith("--") and equals and not value.strip():
            return name
    return ""


def restarts(flags: argparse.ArgumentParser, after: str = "a preemption or a fault") -> None:
    """Adds `--restarts`: `after` what the program is started again."""
    flags.add_argument(
        "--restarts",
        type=natural,
        default=0,
        metavar="N",
        help=f"start again up to N times after {after}, never after a user's mistake (default: 0)",
    )


def carried(flags: argparse.ArgumentParser) -> None:
    """Adds `--env`, for processes that do not inherit this one's environment."""
    flags.add_argument(
        "--env",
        type=variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of the program's environment; may be given several times",
    )


def environment(coordinator: str, processes: int, index: int) -> dict[str, str]:
    """What process `index` of a run is told of its place, and that its log is there when one looks."""
    return {
        "LONGHAUL_COORDINATOR": coordinator,
        "LONGHAUL_PROCESSES": str(processes),
        "LONGHAUL_PROCESS": str(index),
        "PYTHONUNBUFFERED": "1",
    }


def work_folder(program: Sequence[str]) -> str:
    """The folder of the program's run: `--workdir`, or what `train` takes without it; WORKDIR where neither shows."""
    given = flag(program, "workdir")
    named = recipe_name(program) if not given and program[:1] in (["train"], ["prepare"]) else ""
    return given or (f"runs/{named}" if named else "WORKDIR")


def recipe_name(program: Sequence[str]) -> str:
    """The name of the program's config, read in the recipe's text, which is not run; nothing where it is not plain."""
    path, _, variant = (flag(program, "config") or "configs/quickstart.py").partition(":")
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    default = re.search(r'^ +variant = variant or "([^"]*)"$', text, re.MULTILINE)
    variant = variant or (default[1] if default else "")
    names = re.findall(r'^ +config\.name = f?"([^"]*)"$', text, re.MULTILINE)
    plain = [name.replace("{variant}", variant) for name in names if variant or "{" not in name]
    of_variant = [name for name in plain if variant and name.endswith(variant)]
    name = flag(program, "config.name") or next(iter(of_variant + plain), "")
    return "" if "{" in name else name


def count(number: int, what: str) -> str:
    """A number of things in words: "1 host", "2 hosts"."""
    return f"{number} {what}{'' if number == 1 else 'es' if what.endswith('s') else 's'}"


def flag(program: Sequence[str], name: str) -> str:
    """The value of one of the program's flags, or nothing where it is not among them."""
    for at, word in enumerate(program):
        if word in (f"--{name}", f"-{name}") and at + 1 < len(program):
            return program[at + 1]
        if word.startswith((f"--{name}=", f"-{name}=")):
            return word.partition("=")[2]
    return ""


def natural(text: str) -> int:
    """An argparse type: a whole number from zero up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 up")
    return int(text)


def seconds(text: str) -> float:
    """An argparse type: a time in seconds, from zero up and not endless."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time; write seconds from 0 up, such as 30")
    return value


def log_folder(flags: argparse.ArgumentParser, folder: Path) -> None:
    """Makes the folder that `--logs` names; exits with code 2 where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        flags.error(f"--logs {folder} cannot be made a folder ({error.strerror}); name another")


def variable(text: str) -> str:
    """An argparse type: NAME=VALUE of an environment."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*", text):
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return text


def name(text: str) -> str:
    """An argparse type: a name that files, hosts and clusters take."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name; use letters, digits, '.', '_' and '-'")
    return text


def line(text: str) -> str:
    """An argparse type: text of one line."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not one line of printable text")
    return text


def positive(text: str) -> int:
    """An argparse type: a whole number above zero."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def run(command: Sequence[str]) -> int:
    """Runs a command of the cluster's own tools and returns its exit code; 2 and a sentence if it is not installed."""
    return subprocess.run(command).returncode if installed(command[0]) else MISTAKE


def hand_over(command: Sequence[str], text: str) -> tuple[int, str]:
    """Hands text to a command of the cluster's own tools; its exit code, as of `run`, and what it printed, as shown."""
    if not installed(command[0]):
        return MISTAKE, ""
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, errors="replace")
    print(done.stdout, end="", flush=True)
    return done.returncode, done.stdout


def installed(tool: str) -> bool:
    """Whether a tool of the cluster is here; says so where it is not."""
    if shutil.which(tool):
        return True
    print(
        f"launch: '{tool}' is not installed here; run this where it is, or see with --dry-run what it does",
        file=sys.stderr,
    )
    return False
