"""Progress of a run: a bar on a terminal, plain lines elsewhere; seconds by category."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

# Metrics on the progress line; all others are in the files only.
FORMATS = {
    "loss": lambda value: f"loss {value:.3f}",
    "learning_rate": lambda value: f"lr {value:.1e}",
    "tokens_per_second": lambda value: f"{amount(value)} tok/s",
    "mfu": lambda value: f"MFU {value:.1%}",
    "data_wait": lambda value: f"{value:.0%} data wait",
}

LONG = 20.0  # seconds of waiting after which the reason is printed


class Progress:
    """Shows progress from step `start` to `total`.

    On a terminal a thread redraws one line four times a second; elsewhere an `update` prints a line, but the last one
    excepted only `seconds` after the line before. The time left assumes the mean pace since the first update, including
    evaluations and saves.
    """

    def __init__(self, total: int, start: int, description: str, file: TextIO | None = None, seconds: float = 0.0):
        self._total, self._file, self._seconds = total, file or sys.stderr, seconds
        self._printed = -math.inf  # time of the last line
        self._first: tuple[int, float] | None = None  # step and time of the first update, which excludes compilation
        self._bar = None
        if self._file.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"))
            self._bar = Bar(*columns, console=Console(file=self._file), refresh_per_second=4)
            self._task = self._bar.add_task(description, total=total, completed=start, line="")
            self._bar.start()

    def update(self, step: int, values: dict[str, float]) -> None:
        """Show `step` and those of `values` that are in `FORMATS`, in its order."""
        now = time.perf_counter()
        first, then = self._first = self._first or (step, now)
        parts = [f"step {step}/{self._total}"]
        parts += [form(values[name]) for name, form in FORMATS.items() if name in values]
        if step > first:
            parts.append(f"ETA {clock((self._total - step) * (now - then) / (step - first))}")
        line = "  ".join(parts)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, line=line)
        elif step == self._total or now - self._printed >= self._seconds:
            self._printed = now
            print(line, file=self._file, flush=True)

    def note(self, message: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is None:
            print(message, file=self._file, flush=True)
        else:
            self._bar.console.print(message, markup=False, highlight=False)

    @contextmanager
    def waiting(self, message: str) -> Iterator[None]:
        """Print the message if the block takes longer than `LONG` seconds."""
        # A thread, because the block holds this one: XLA compiles without returning to Python.
        timer = threading.Timer(LONG, self.note, [message])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """Stop redrawing; the last state of the bar stays on the terminal."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def still(report: Callable[[str], None], doing: str, every: float = LONG) -> Iterator[None]:
    """Report every so many seconds that the block is `doing` something, and for how long."""
    done, began = threading.Event(), time.perf_counter()

    def repeat() -> None:
        while not done.wait(every):
            report(f"still {doing}, {clock(time.perf_counter() - began)} so far")

    # A thread, because XLA compiles without returning to Python.
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Ledger:
    """Seconds by category since it was created; time outside of any block is `other`.

    `with ledger.spend("data"): ...` charges the block to data. Blocks nest, and the time of an inner one is not charged
    to the outer one too, so that the categories add up to the whole.
    """

    CATEGORIES = ("step", "data", "save", "restore", "evaluate", "compile", "other")

    def __init__(self):
        self._seconds = dict.fromkeys(self.CATEGORIES, 0.0)
        self.category = "other"  # the category that is being charged
        self.turns = 0  # block starts and ends, for the watchdog
        self.update = 0  # the last step that was started, set by the loop
        self.steady = False  # whether a step has been made, set by the loop
        self._since = time.perf_counter()

    def _turn(self, category: str) -> None:
        now = time.perf_counter()
        self._seconds[self.category] += now - self._since
        self.category, self._since = category, now

    @contextmanager
    def spend(self, category: str) -> Iterator[None]:
        """Charge the block to `category`, one of `CATEGORIES` or a new one."""
        # Only the innermost block is charged: the outer one's clock stops meanwhile.
        self._seconds.setdefault(category, 0.0)
        before = self.category
        self._turn(category)
        self.turns += 1
        try:
            yield
        finally:
            self._turn(before)
            self.turns += 1

    def advance(self) -> bool:
        """Count a turn, for the watchdog; return False, so that it can be a callback which never stops a loop."""
        self.turns += 1
        return False

    def seconds(self) -> dict[str, float]:
        """Seconds by category up to now."""
        self._turn(self.category)
        return dict(self._seconds)

    def summary(self) -> str:
        """The total time, and the categories with at least 0.05 s, in words."""
        seconds = self.seconds()
        total = sum(seconds.values())
        spent = (f"{name} {value:.1f} s ({value / total:.0%})" for name, value in seconds.items() if value >= 0.05)
        return f"{total:.1f} s: {', '.join(spent)}"


def clock(seconds: float) -> str:
    """A duration as `h:mm:ss`, with days in front if there are any."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hour}:{minute:02d}:{second:02d}"


def amount(value: float) -> str:
    """A number to three digits with a unit prefix: 950, 41.2k, 1.25M, 175G, 3.64T, 314E."""
    # Limits half a digit below the next power: 999.6 is shown as 1.00k.
    for letter in ("", "k", "M", "G", "T", "P", "E"):
        if abs(value) < 999.5 or letter == "E":
            break
        value /= 1000
    digits = 0 if abs(value) >= 99.95 or (not letter and value == round(value)) else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}{letter}"


def open_null() -> TextIO:
    """A file that discards everything, for processes other than the first."""
    return open(os.devnull, "w")
