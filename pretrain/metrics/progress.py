"""What a waiting user sees: a bar on a terminal, plain lines elsewhere, and where the time went."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

# How the metrics that are worth a place on the line are format_measure; all others are in the files alone.
WORDING = {
    "loss": lambda value: f"loss {value:.3f}",
    "learning_rate": lambda value: f"lr {value:.1e}",
    "tokens_per_second": lambda value: f"{amount(value)} tok/s",
    "mfu": lambda value: f"MFU {value:.1%}",
    "data_wait": lambda value: f"{value:.0%} data wait",
}

LONG = 20.0  # seconds that nobody waits without a word


class Progress:
    """Shows how far work has come, from `start` to `total` in steps; `total` 0 means that the end is unknown.

    On a terminal one line is redrawn four times a second by a thread of its own; elsewhere each `update` prints a
    line. The time left is what is left at the mean pace since the first update, whatever that time went to.
    """

    def __init__(self, total: int, start: int, description: str, file: TextIO | None = None):
        self._total, self._start, self._description = total, start, description
        self._file = file or sys.stderr
        self._first: tuple[int, float] | None = None  # step and time of the first update: compilation lies before it
        self._bar = None
        if self._file.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"))
            self._bar = Bar(*columns, console=Console(file=self._file), refresh_per_second=4)
            self._task = self._bar.add_task(description, total=total or None, completed=start, line="")
            self._bar.start()

    def update(self, step: int, values: dict[str, float]) -> None:
        """The work has come to `step`; of `values`, those named in `WORDING` are shown, in its order."""
        line = "  ".join(
            [f"step {step}/{self._total}" if self._total else f"step {step}"]
            + [word(values[name]) for name, word in WORDING.items() if name in values]
            + [f"ETA {left}" for left in [self._left(step)] if left]
        )
        if self._bar is None:
            print(line, file=self._file, flush=True)
        else:
            self._bar.update(self._task, completed=step, line=line)

    def note(self, message: str) -> None:
        """Prints a line that stays, above the bar if there is one."""
        if self._bar is None:
            print(message, file=self._file, flush=True)
        else:
            self._bar.console.print(message, markup=False, highlight=False)

    @contextmanager
    def waiting(self, message: str) -> Iterator[None]:
        """Notes the message if the block takes longer than `LONG` seconds."""
        timer = threading.Timer(LONG, self.note, [message])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """Leaves the last state of the bar on the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _left(self, step: int) -> str:
        now = time.perf_counter()
        if self._first is None:
            self._first = (step, now)
        first, then = self._first
        if not self._total or step <= first:
            return ""
        return clock((self._total - step) * (now - then) / (step - first))


class Ledger:
    """Where the seconds go, by category. All time is someone's: what no category claims is `other`.

    `with ledger.spend("data"): ...` charges the block to data. Blocks nest, and the inner one's time is its own,
    not the outer one's too, so that the categories always add up to the time since the ledger was opened.
    """

    CATEGORIES = ("step", "data", "save", "restore", "evaluate", "compile", "other")

    def __init__(self):
        self._seconds = dict.fromkeys(self.CATEGORIES, 0.0)
        self.category = "other"  # whose the seconds are now
        self.turns = 0  # blocks that were begun or ended
        self.update = 0  # the last update that was begun: whoever makes it says so here
        self.steady = False  # likewise: whether one has been made
        self._since = time.perf_counter()

    def _turn(self, category: str) -> None:
        now = time.perf_counter()
        self._seconds[self.category] += now - self._since
        self.category, self._since = category, now

    @contextmanager
    def spend(self, category: str) -> Iterator[None]:
        """Charges the block to `category`, one of `CATEGORIES`; any other name raises KeyError."""
        before = self.category
        self._seconds[category]  # a misspelt category fails here, not when its block ends
        self._turn(category)
        self.turns += 1
        try:
            yield
        finally:
            self._turn(before)
            self.turns += 1

    def advance(self) -> bool:
        """Counts a turn, for the watchdog; returns False, so that it can be a callback which never stops a loop."""
        self.turns += 1
        return False

    def seconds(self) -> dict[str, float]:
        """Seconds by category up to now; their sum is the time since the ledger was opened."""
        self._turn(self.category)
        return dict(self._seconds)

    def summary(self) -> str:
        """The time since the ledger was opened, and the categories that took more than a moment of it."""
        seconds = self.seconds()
        total = sum(seconds.values())
        spent = (f"{name} {value:.1f} s ({value / total:.0%})" for name, value in seconds.items() if value >= 0.05)
        return f"{total:.1f} s: {', '.join(spent)}"


def clock(seconds: float) -> str:
    """A duration as `h:mm:ss`, with days before it where there are any."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hour}:{minute:02d}:{second:02d}"


def amount(value: float) -> str:
    """A number to three digits with the letter of its thousand: 950, 41.2k, 1.25M, 175G, 3.64T, 314E."""
    for letter in ("", "k", "M", "G", "T", "P", "E"):
        if abs(value) < 999.5 or letter == "E":
            break
        value /= 1000
    digits = 0 if abs(value) >= 99.95 or (not letter and value == round(value)) else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}{letter}"


def open_null() -> TextIO:
    """A file that keeps nothing, for the processes that show nothing."""
    return open(os.devnull, "w")
