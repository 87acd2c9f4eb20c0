"""What launchers print: who reads it and stands still holds up no run, and who leaves ends none."""

import os
import select
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from launch import MISTAKE, work_folder

MOMENT = 1.0  # seconds that a run which is to go on, or to end, waits for a reader who stands still
PIECE = 4096  # bytes that a pipe with room for any takes without waiting
UNREAD = 141  # exit code where the reader of what was asked for left before its end, as a shell has it of SIGPIPE


def say(words: str) -> None:
    """Says something of the launch, on standard error."""
    put(sys.stderr, f"launch: {words}\n")


def put(stream: TextIO | None, words: str) -> None:
    """Prints, but what a reader who stands still does not take in a moment."""
    if stream is None:
        return
    until = time.monotonic() + MOMENT
    try:
        stream.flush()  # what was printed before comes first
        rest = words.encode(stream.encoding, "backslashreplace")
        while rest and select.select([], [stream.fileno()], [], max(0.0, until - time.monotonic()))[1]:
            rest = rest[os.write(stream.fileno(), rest[:PIECE]) :]
    except OSError:
        nowhere(stream.fileno())


def nowhere(number: int) -> None:
    """Has what is printed by this number go nowhere from now on, since nobody can read it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def answer(text: str) -> None:
    """Prints what was asked for; ends the program where that cannot be printed, or nobody reads it to the end."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        nowhere(1)  # what is left is not tried again when the program ends
        if isinstance(error, BrokenPipeError):
            raise SystemExit(UNREAD) from None
        remedy = "make room where standard output goes, or send it elsewhere"
        say(f"cannot write what is printed: {error.strerror}; {remedy}")
        raise SystemExit(MISTAKE) from None


def show(*commands: Sequence[str]) -> None:
    """Prints commands as they would be typed, of a dry run."""
    answer("".join(f"{shlex.join(command)}\n" for command in commands))


def hints(program: Sequence[str], watch: str, stop: str, go_on: str = "the same command again") -> None:
    """Says on standard error, a line each, how to watch the run, how to stop it with all saved, and how to go on.

    Of a command that does not train there is its log and how to stop it, and no more.
    """
    folder = work_folder(program)
    lines = {
        "watch": watch,
        "curves": f"tensorboard --logdir={shlex.quote(f'{folder}/metrics')}",
        "where the time goes": f"pretrain goodput --workdir={shlex.quote(folder)}",
        "stop with everything saved": stop,
        "go on": go_on,
    }
    if program[:1] in (["evaluate"], ["prepare"], ["generate"]):
        lines = {"watch": watch, "stop": stop}
    put(sys.stderr, "".join(f"launch: {what}: {how}\n" for what, how in lines.items()))
