"""A process that no longer gets on: noticed by a clock of its own, named with its last update and its stacks.

Whoever waits for another process, in a collective or at a barrier, waits in code that knows no end. A thread of each
process looks how far its work has come, and in a run of several processes all say where they stand once one of them
has come no further for too long (`Roll`). Where none has, the last of them is the late one, and the run ends, to be
started again. Before the first update, processes do not work in step: one tokenises for hours while the others wait.
What it gets done there has no turns, so that using the processor counts as getting on; and so does, at any time,
waiting for who reads standard error.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pretrain.processes.leaving import FAULT, Leaving
from pretrain.processes.streams import Unheard

LOOK = 0.5  # seconds between looks
LONG = 6  # compiling, saving, restoring, evaluating and the first update may take so many times as long as an update
QUICK = ("step", "data", "other")  # what must come further within config.train.patience
BUSY = 0.2  # of a core: what a process uses at least where it works, and what waiting and being watched take less of
AGAIN = 1.1  # times as long as when it last called, a late process calls again where another one still got on
ANSWER = 10.0  # seconds within which a process that is asked says where it stands
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
        self._used = time.process_time()
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
    def late(self) -> bool:
        place = self.place()
        quick = place.doing in QUICK and place.steady
        return 0 < self._patience * (1 if quick else LONG) <= self.waited

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            place, used = self.place(), time.process_time()
            works = (place.doing in BEFORE and used - self._used > BUSY * LOOK) or Unheard.waiting
            self._looks = self._looks + 1 if place.turns == self._seen and not works else 0
            self._seen, self._used = place.turns, used
            if self._leaving.others:  # they are asked first (`Roll`)
                self._leaving.others.tick()
            elif self.late and place.doing not in BEFORE:  # alone it may wait for another run that tokenises its text
                self._leaving.leave(
                    FAULT,
                    f"nothing has come further for {self.waited:.0f} s, {self.place().words} (config.train.patience = "
                    f"{self._patience:g}); start the same command again to go on from the newest checkpoint; it "
                    f"stands at\n{stacks()}",
                )


class Roll:
    """Calls all processes of a run once one of them is late, and names the last of them.

    `put(key, value)` and `read(folder)` are of the store that the processes share.

        notice/late/I    process I has come no further for too long: how far it is
        stand/I          the answer of process I: the calls it has heard, whether it is late, place and stacks
    """

    def __init__(self, leaving: Leaving, index: int, count: int, put: Callable, read: Callable):
        self._leaving, self._index, self._count, self._put, self._read = leaving, index, count, put, read
        self._called = ""  # the call that is out, another one each time; empty: none
        self._turns = -1  # how far this process was when it called
        self._since = self._until = 0.0
        self._answered: dict[str, str] = {}

    def round(self, calls: dict[str, str]) -> None:
        """Answers the `calls` of others, and makes one where this process is late. Twice a second."""
        dog = self._leaving.watchdog
        if calls and calls != self._answered:
            self._answer(calls, dog)
        if dog is None or not dog.late:
            self._called, self._until = "", 0.0
            return
        turns = dog.place().turns
        if not self._called or self._turns != turns:
            if dog.waited >= self._until:
                called = f"{turns} {dog.waited}"
                self._put(f"notice/late/{self._index}", called)
                self._called, self._turns, self._since = called, turns, time.monotonic()
            return
        answers = {int(index): json.loads(answer) for index, answer in self._read("stand/").items()}
        answers = {i: a for i, a in answers.items() if a["calls"].get(str(self._index)) == self._called}
        if not all(answer["late"] for answer in answers.values()):
            self._called, self._until = "", AGAIN * dog.waited
        elif len(answers) == self._count or time.monotonic() - self._since > ANSWER:
            self._leaving.leave(FAULT, verdict(answers, self._count, dog.waited))

    def _answer(self, calls: dict[str, str], dog: Watchdog | None) -> None:
        place = dog.place() if dog else Place(-1, "other", 0)
        late = dog is None or dog.late
        stand = {"calls": calls, "late": late, "turns": place.turns, "words": place.words, "stacks": stacks()}
        self._put(f"stand/{self._index}", json.dumps(stand))
        self._answered = calls


def verdict(answers: dict[int, dict], count: int, waited: float) -> str:
    """The sentence that names the last of `count` processes, of which some have answered, and where it stands."""
    silent = [index for index in range(count) if index not in answers]
    if silent:
        named = ", ".join(map(str, silent))
        return (
            f"process {named} {'does' if len(silent) == 1 else 'do'} not say how far the work has come, and the others "
            f"have waited for {waited:.0f} s; start the same command again to go on from the newest checkpoint"
        )
    last = min(answer["turns"] for answer in answers.values())
    late = [index for index in sorted(answers) if answers[index]["turns"] == last]
    if len(late) == count:
        said = f"process {late[0]} and all others have come no further for {waited:.0f} s"
    else:
        named, waits = f"process {', '.join(map(str, late))}", "waits" if len(late) == count - 1 else "wait"
        said = f"{named} {'is' if len(late) == 1 else 'are'} late: the rest {waits} since {waited:.0f} s"
    first = answers[late[0]]
    return (
        f"{said}, {first['words']}; start the same command again to go on from the newest checkpoint; process "
        f"{late[0]} stands at\n{first['stacks']}"
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
