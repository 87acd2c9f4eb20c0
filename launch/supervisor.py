"""Supervise the processes of one run: pass signals on, stop all once one fails, restart."""

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch import common

POLL = 0.02  # seconds; short, to tell which process failed first
BOUNCE = 0.5  # seconds within which a second signal is an echo: a terminal's end sends both SIGHUP and SIGTERM
SHORT = 600.0  # seconds; pauses between attempts grow while attempts are shorter
LONGEST_PAUSE = 300.0  # seconds
TAIL = 20  # lines of a failed process's log to show
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before any fork


@dataclass
class Process:
    """A supervised process: the program itself, or the ssh client of a program on another host.

    The host of a `remote` one stops the program once this side closes standard input.
    """

    name: str
    command: Sequence[str]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    remote: bool = False
    signal: int = 0  # passed on last

    def start(self) -> None:
        """Start the process in a new session, so that a terminal's Ctrl-C reaches it only through us."""
        with self.log.open("ab") as out:
            if out.tell():
                out.write(f"\nlaunch: start at {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
                out.flush()
            self.offset = out.tell()  # of this attempt's output in the log
            self.popen = subprocess.Popen(
                self.command,
                env=os.environ | dict(self.variables),
                stdin=subprocess.PIPE if self.remote else subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # An ssh client outlives a killed launcher: it carries the output while its program saves.
                preexec_fn=None if self.remote else die_with_parent,
            )

    @property
    def code(self) -> int | None:
        """Exit code as a shell counts it, None while running."""
        code = self.popen.poll()
        if code and -code == self.signal:
            return common.PREEMPTED  # ended by our signal before it had a handler: there was nothing to save
        return code if code is None or code >= 0 else 128 - code

    def stop(self, number: int) -> None:
        """Ask the program to save and stop."""
        self.signal = number
        if self.remote:
            self.popen.stdin.close()
        else:
            self.popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process with its children."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)

    def tail(self) -> str:
        """The last lines of this attempt's output, each behind the process's name."""
        lines = self.log.read_bytes()[self.offset :].decode(errors="replace").splitlines()
        lines = [line for line in lines if not line.startswith("[Gloo] ")][-TAIL:]
        return "".join(f"\n  {self.name.split()[-1]} | {line}" for line in lines)


def supervise(processes: Sequence[Process], grace: float, signals: "Signals") -> int:
    """Run processes until all have ended, and stop the others once one fails.

    Shows the output of the first. Returns the exit code of the first failure, or 0.
    """
    for process in processes:
        process.start()
    failure, deadline, passed = None, math.inf, 0
    with processes[0].log.open("rb") as log:
        log.seek(processes[0].offset)
        while True:
            running = [process for process in processes if process.code is None]
            for line in iter(log.readline, b""):
                if not line.startswith(b"[Gloo] "):  # dozens of greetings of JAX's CPU transport
                    common.emit(sys.stdout, line)
            for number in signals.received[passed:]:
                passed += 1
                for process in running:
                    process.stop(number) if passed == 1 else process.kill()
            if failure is None:
                # A mistake comes first: the others may have failed because of it.
                failures = [process for process in processes if process.code]
                failure = min(failures, key=lambda process: process.code != common.MISTAKE, default=None)
                if failure:
                    deadline = time.monotonic() + grace
                    for process in running if not passed else ():
                        process.stop(signal.SIGTERM)
                    _report(failure, shown=failure is processes[0])
            if not running:
                return failure.code if failure else 0
            if time.monotonic() > deadline:
                for process in running:
                    process.kill()
            time.sleep(POLL)


def run_attempts(start: Callable[[int], int], restarts: int, pause: float, signals: "Signals") -> int:
    """Call `start(attempt)` until its exit code is final; return the last exit code.

    The pause between attempts doubles while they are short.
    """
    wait = pause
    for attempt in range(restarts + 1):
        began = time.monotonic()
        code = start(attempt)
        if code in common.NOT_RUN:
            common.say(f"exit code {code}: a command is missing or not executable; is --python right?")
        if code in common.FINAL or signals.received or attempt == restarts:
            break
        wait = pause if time.monotonic() - began > SHORT else wait
        common.say(f"exit code {code}, restart {attempt + 1} of {restarts} in {wait:g} s")
        if signals.wait(wait):
            break
        wait = min(2 * wait, LONGEST_PAUSE)
    return common.PREEMPTED if code == common.STOPPED else code


class Signals:
    """Requests to stop, collected while open; the first asks to save, a second one to end at once."""

    def __enter__(self) -> "Signals":
        self.received: list[int] = []
        self._first = 0.0
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
            numbers.append(signal.SIGHUP)
        self._handlers = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _) -> None:
        if self.received and time.monotonic() - self._first < BOUNCE:
            return
        self._first = self._first or time.monotonic()
        self.received.append(signal.SIGTERM if number == signal.SIGHUP else number)

    def wait(self, seconds: float) -> bool:
        """Sleep, but not past a request to stop; return whether one came."""
        until = time.monotonic() + seconds
        while not self.received and time.monotonic() < until:
            time.sleep(POLL)
        return bool(self.received)


def _report(process: Process, shown: bool) -> None:
    if process.code in (common.PREEMPTED, common.STOPPED):
        common.say(f"{process.name} stopped with everything saved (exit code {common.PREEMPTED})")
    else:
        tail = "" if shown else process.tail()
        common.say(f"{process.name} failed with exit code {process.code}; log: {process.log}{tail}")


def die_with_parent() -> None:
    """Have Linux kill this process when the launcher dies; else a second run could write to its work folder."""
    if _libc:
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
