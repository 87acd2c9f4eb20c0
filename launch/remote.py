"""This side of a program that runs on another host: the command that is sent there, and what is said to it."""

import os
import re
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from launch import MISTAKE
from launch.keeper import ALIVE, KILL, STOP
from launch.supervise import Child

BEAT = 10.0  # seconds between two signs of life
SILENCE = 60  # seconds without one after which a host stops its program
FAREWELL = 10.0  # seconds that a connection has to end by itself once its program was killed


def new_launch() -> str:
    """A name for this launch that no other has."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def kept(
    folder: str, remedy: str, python: str, variables: Sequence[str], options: Sequence[str], program: Sequence[str]
) -> str:
    """The command, for a shell on the host, that runs the program there under `launch.keeper` with `options`.

    Where the project is not in `folder` it says so and what the `remedy` is, and ends as after a mistake.
    """
    words = ["-m", "launch.keeper", *options, *(["--", *program] if program else [])]
    environment = f"env {shlex.join(variables)} " if variables else ""
    missing = ["sh", "-c", f'echo "$0" >&2; exit {MISTAKE}', f"launch: the project is not in {folder} here; {remedy}"]
    return (
        f"cd {place(folder)} && test -f launch/keeper.py || exec {shlex.join(missing)}; "
        f"exec {environment}{place(python)} {shlex.join(words)}"
    )


def place(path: str) -> str:
    """A path as a shell on the host is told it: a `~` or `~user` that it begins with is for that shell to expand."""
    home, rest = re.fullmatch(r"(~(?:[A-Za-z_][A-Za-z0-9._-]*)?(?:/|\Z))?(.*)", path, re.DOTALL).groups()
    return (home or "") + (shlex.quote(rest) if rest or not home else "")


def start(command: Sequence[str], log: Path) -> subprocess.Popen:
    """The connection: what is said to the host goes into its standard input, what the program prints into `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )


class Remote(Child):
    """A program on another host, reached through a connection of its own."""

    def __init__(self, name: str, process: subprocess.Popen, log: Path, since: int = 0):
        super().__init__(name, process, log, since)
        self._said, self._killed = time.monotonic(), 0.0

    def ask(self, number: int) -> None:
        self._say(STOP)

    def kill(self) -> None:
        """Has the host kill the program, and a little later ends the connection."""
        if not self._killed:
            self._killed = time.monotonic()
            self._say(KILL)
        elif time.monotonic() - self._killed > FAREWELL and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def beat(self) -> None:
        if time.monotonic() - self._said > BEAT:
            self._say(ALIVE)

    def _say(self, word: bytes) -> None:
        self._said = time.monotonic()
        try:
            self.process.stdin.write(word)
        except OSError:
            return  # the connection has ended, which its process will say itself
