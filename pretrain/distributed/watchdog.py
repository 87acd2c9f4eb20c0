"""A process that no longer gets on: noticed by a clock of its own, named with its last update and its stacks.

Whoever waits for another process, in a collective or at a barrier, waits in code that knows no end. A thread of each
process looks how far its work has come; which of several is to blame they find out together (roll_call.py). Before the
first update, processes do not work in step: one tokenises for hours while the others wait. What it gets done there has
no turns, so that using the processor counts as getting on, be it by processes that it has started; and so does, at any
time, waiting for who reads standard error.
"""

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from input_pipeline import files
from input_pipeline.processes import processor_seconds
from pretrain.distributed.shutdown import FAULT, Leaving
from pretrain.distributed.streams import Unheard

LOOK = 0.5  # seconds between looks
LONG = 6  # compiling, saving, restoring, evaluating and the first update may take so many times as long as an update
QUICK = ("step", "data", "other")  # what must come further within config.train.patience
BUSY = 0.2  # of a core: what a process uses at least where it works, and what waiting and being watched take less of
FRAMES = 25  # innermost frames of a stack that are told
OURS = str(Path(__file__).resolve().parents[2]) + os.sep
WORDS = {
    "step": "in an update",
    "data": "waiting for data",
    "other": "between updates",
    "compile": "compiling",
    "save": "saving",
    "restore": "restoring",
    "evaluate": "evaluating",
}
BEFORE = {"begin": "before the first update", "score": "scoring a checkpoint"}  # of no update


class Place(NamedTuple):
    """How far a process has come."""

    turns: int  # grows with all that it gets done, alike in all processes of a run
    doing: str  # what it is at, a category of the ledger or one of BEFORE
    update: int  # the last update that it has begun
    steady: bool = True  # whether it has made an update: the first one's data may have to be planned

    @property
    def words(self) -> str:
        return BEFORE.get(self.doing) or f"{WORDS[self.doing]} after update {self.update}"


class Watchdog:
    """Watches over the work of this process, whose `place` it asks for, until it is closed.

    `patience` seconds without getting further are too long (`LONG` times as many for what is not of `QUICK`, and until
    the first update is made); 0 waits for ever. Looks are counted and not seconds, so that a process that is suspended
    goes on when it wakes.
    """

    def __init__(self, leaving: Leaving, patience: float, place: Callable[[], Place]):
        self._leaving, self._patience, self.place = leaving, patience, place
        self._used = processor_seconds()
        self._seen, self._looks = -1, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        leaving.watchdog = self
        self._thread.start()

    def close(self) -> None:
        self._leaving.watchdog = None
        self._over.set()
        self._thread.join()

    @property
    def waited(self) -> float:
        """Seconds for which this process has come no further."""
        return self._looks * LOOK

    @property
    def queues(self) -> bool:
        """Whether it waits for a lock that another process holds, of this run or of another one."""
        return threading.main_thread().ident in files.waiting

    @property
    def late(self) -> bool:
        place = self.place()
        quick = place.doing in QUICK and place.steady
        return 0 < self._patience * (1 if quick else LONG) <= self.waited

    def _busy(self) -> bool:
        """Whether it, or who works for it, has used the processor since the last look."""
        before, self._used = self._used, processor_seconds()
        return self._used - before > BUSY * LOOK

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            place = self.place()
            works = (place.doing in BEFORE and self._busy()) or Unheard.waiting
            self._looks = self._looks + 1 if place.turns == self._seen and not works else 0
            self._seen = place.turns
            if self._leaving.others:  # they are asked first (roll_call.py)
                self._leaving.others.tick()
            elif self.late and place.doing not in BEFORE:  # alone it may wait for another run that tokenises its text
                self._leaving.leave(
                    FAULT,
                    f"nothing has come further for {self.waited:.0f} s, {self.place().words} (config.train.patience = "
                    f"{self._patience:g}); start the same command again to go on from the newest checkpoint; it "
                    f"stands at\n{stacks()}",
                )


def stacks() -> str:
    """Where this process is: the innermost frames of the main thread, and of others that are in our own code."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    main, told = threading.main_thread().ident, []
    frames = sys._current_frames()
    for ident in sorted(frames, key=lambda ident: ident != main):
        thread = threads.get(ident)
        if thread is None or thread is threading.current_thread():
            continue
        lines = traceback.extract_stack(frames[ident])
        ours = any(line.filename.startswith(OURS) and "/processes/" not in line.filename for line in lines)
        if ident == main or ours:
            told.append(f"thread {thread.name}:\n" + "".join(traceback.format_list(lines[-FRAMES:])))
    return "".join(told).rstrip()


@contextlib.contextmanager
def scoring(leaving: Leaving, patience: float) -> Iterator[Callable[[], bool]]:
    """Watches over a checkpoint's scoring; gives what is to be called after each batch: it never ends there."""

    def counted() -> bool:
        leaving.turns += 1
        return False

    def place() -> Place:
        return Place(leaving.meetings + leaving.turns, "score", 0, False)

    with contextlib.closing(Watchdog(leaving, patience, place)):
        yield counted
