"""Watches over the processes of one run: all end when one fails, signals reach all, and it may start again."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from launch import MISTAKE, NOT_RUN, PREEMPTED, STOPPED
from launch.output import MOMENT, PIECE, say
from launch.passing import Passing

POLL = 0.02  # seconds between looks at the processes: short, to tell which one died first
SOON = 600.0  # seconds within which an attempt has ended soon
LONGEST = 300.0  # seconds between two attempts
ECHO = 0.5  # seconds within which a repeated Ctrl-C is the same one, as `pretrain` has it
TAIL = 20  # lines of a dead process's log that are shown
# What Gloo, which joins CPU processes, prints of each group that it makes: dozens of lines, even where all is well.
GREETING = b"[Gloo] "


class Child:
    """A process of the run, started here; `name` is what it is called in messages, and `log` what it prints.

    `since` is where in the log, in bytes, that begins: what earlier attempts and launches printed stands before it.
    """

    def __init__(self, name: str, process: subprocess.Popen, log: Path, since: int = 0):
        self.name, self.process, self.log, self.since = name, process, log, since

    def ask(self, number: int) -> None:
        """Passes a signal on, so that it saves and stops."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kills the process and its own workers, which share its session."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def beat(self) -> None:
        """Called again and again while the run lasts."""


def supervise(children: Sequence[Child], grace: float, signals: "Signals", more: bool = False) -> int:
    """Waits until all have ended, ending the rest once one has failed; returns the exit code of that one, or 0.

    A process that a signal ended counts as 128 + its number, as in a shell; as interrupted, where that signal was
    passed on to it, since it had then not begun anything that could be lost. What the first one prints is shown, but
    not how it was interrupted where another's mistake ends the run; in the end its reader is waited for, but only a
    moment where a signal came, or another attempt is to follow (`more`). STOPPED is returned where `--stop` asked one.
    """
    failed, deadline, passed_on = None, float("inf"), set()
    with children[0].log.open("rb") as log:
        log.seek(children[0].since)
        shown = _Shown(log)
        while True:
            running = [child for child in children if child.process.poll() is None]
            shown.some()
            for count, number in signals.take():
                passed_on.add(number)
                for child in running:
                    child.ask(number) if count == 1 else child.kill()
            if failed is None:
                ended = [child for child in children if child.process.returncode]
                mistaken = [child for child in ended if child.process.returncode == MISTAKE]
                failed = next(iter(mistaken + ended), None)
                if failed is not None:
                    deadline = time.monotonic() + grace
                    if failed is not children[0] and _code(failed, passed_on) == MISTAKE:
                        shown.end = children[0].log.stat().st_size
                    for child in running if not signals.count else ():  # they have been asked to stop already
                        child.ask(signal.SIGTERM)
                    _report(failed, _code(failed, passed_on), shown=failed is children[0], others=bool(running))
            if not running:
                break
            for child in running:
                child.kill() if time.monotonic() > deadline else child.beat()
            time.sleep(POLL)
        code = 0 if failed is None else _code(failed, passed_on)
        if code == PREEMPTED and STOPPED in (child.process.returncode for child in children):
            code = STOPPED
        if _code(children[0], passed_on) not in (PREEMPTED, STOPPED):
            shown.end = None
        if not shown.rest(_patience(signals, hurried=more and not _ends(code))):
            say(f"the rest, which was not read in time, is in {children[0].log}; it ends:{_ending(children[0])}")
        return code


def _patience(signals: "Signals", hurried: bool) -> Callable[[], bool]:
    """Whether to wait on for a reader: for ever, or where it is `hurried`, or a signal came, a MOMENT in all."""
    until = None

    def waits() -> bool:
        nonlocal until
        if until is None and (hurried or signals.came):
            until = time.monotonic() + MOMENT
        return until is None or time.monotonic() < until

    return waits


def again(start: Callable[[int], int], restarts: int, pause: float, signals: "Signals") -> int:
    """Calls `start(attempt)`, attempts counted from 0, until the run is done; returns its last exit code.

    It starts again, `restarts` times at most, after a preemption or a fault: never after a user's mistake, of which a
    command that is not there is one, nor where this launcher itself was asked to stop, or the run by `--stop`. It waits
    for `pause` seconds, and twice as long each time, up to LONGEST, while attempts end soon: a machine that is started
    anew takes its time.
    """
    wait = pause
    for attempt in range(restarts + 1):
        began = time.monotonic()
        code = start(attempt)
        if code in NOT_RUN:
            say(f"exit code {code}: a command is not there or cannot be run; is --python right?")
        if _ends(code) or signals.came or attempt == restarts:
            break
        wait = pause if time.monotonic() - began > SOON else wait
        say(f"ended with exit code {code}; starting again in {wait:g} s ({attempt + 1} of {restarts})")
        until, wait = time.monotonic() + wait, min(2 * wait, LONGEST)
        while time.monotonic() < until and not signals.came:
            time.sleep(POLL)
        if signals.came:
            break
    return PREEMPTED if code == STOPPED else code


def _ends(code: int) -> bool:
    """Whether a run that ended so is not to start again."""
    return code in (0, MISTAKE, STOPPED, *NOT_RUN)


def _code(child: Child, passed_on: set[int]) -> int:
    code = child.process.returncode
    if -code in passed_on:
        return PREEMPTED
    return code if code >= 0 else 128 - code


def _report(child: Child, code: int, shown: bool, others: bool) -> None:
    """Says which process ended the run and, if it failed, how its log ends; the first one's has been shown."""
    if code in (PREEMPTED, STOPPED):
        why = " by --stop" if code == STOPPED else ""
        say(f"{child.name} stopped{why} with everything saved (exit code {PREEMPTED})")
        return
    ending = "; ending the others" if others else ""
    words = f"{child.name} ended with exit code {code}{ending}; its log is {child.log}"
    say(words if shown else words + _ending(child))


def _ending(child: Child) -> str:
    """How a process's log ends, line by line, each behind what it is called."""
    lines = child.log.read_bytes()[child.since :].splitlines()
    lines = [line.decode(errors="replace") for line in lines if not line.startswith(GREETING)][-TAIL:]
    return "".join(f"\n  {child.name.split()[-1]} | {line}" for line in lines)


def begin(log: Path, attempt: int) -> int:
    """Where in a log, in bytes, what an attempt prints will begin; a line says so where others stand before it."""
    with log.open("ab") as out:
        if out.tell():
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            out.write(f"\nlaunch: start at {now}, attempt {attempt} of its launch\n".encode())
        return out.tell()


class _Shown(Passing):
    """Prints what a log has more, as it comes, but for the lines in which Gloo greets."""

    def __init__(self, log: BinaryIO):
        super().__init__(log)
        self._held, self._within = b"", False
        self.end: int | None = None  # the byte of the log behind which nothing is shown

    def read(self) -> bytes:
        """What is new; a line of which so little is there that it may be a greeting waits for its rest."""
        words = b""
        while not words:
            room = PIECE if self.end is None else min(PIECE, max(0, self.end - self._log.tell()))
            new = self._log.read(room)
            if not new and not (self._last and self._held):
                break
            held, self._held = self._held, b""
            for line in (held + new).splitlines(keepends=True):
                whole = line.endswith((b"\n", b"\r")) or not new
                if self._within or not line.startswith(GREETING[: len(line)]):
                    words += line
                    self._within = not whole
                elif not whole:
                    self._held = line
                elif not line.startswith(GREETING):
                    words += line
        return words


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: a forked child should load nothing


def with_parent(number: int) -> Callable[[], None] | None:
    """A `preexec_fn` by which a child gets that signal when its parent is killed; None where there is no such thing."""

    def ask_for_it() -> None:
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        _libc.prctl(set_parent_death_signal, number)

    return ask_for_it if _libc else None


class Signals:
    """Collects what asks a run to stop while it is open, to be passed on from the waiting loop."""

    def __enter__(self) -> "Signals":
        self.count, self._hung_up, self._first = 0, False, -ECHO
        self._arrived: list[int] = []
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` has it
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame) -> None:
        if number == signal.SIGINT and self.came and time.monotonic() - self._first < ECHO:
            return
        self._first = self._first if self.came else time.monotonic()
        hung_up, self._hung_up = self._hung_up, number == signal.SIGHUP
        if number == signal.SIGHUP and not self.count and not self._arrived:
            self._arrived.append(signal.SIGTERM)
        elif number != signal.SIGHUP and not (hung_up and number == signal.SIGTERM):
            self._arrived.append(number)  # a session's end is told of by both, and is no wish to kill what is stopping

    @property
    def came(self) -> bool:
        """Whether any came."""
        return bool(self.count or self._arrived)

    def take(self) -> list[tuple[int, int]]:
        """The signals that came since the last call, each with how many it makes in all."""
        arrived, self._arrived = self._arrived, []
        first, self.count = self.count, self.count + len(arrived)
        return list(enumerate(arrived, first + 1))
