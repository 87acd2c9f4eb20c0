"""The other processes of a run: all stop after the same update, and none waits for one that has ended.

They speak through the key-value store that JAX's coordination service keeps in process 0. A thread of each process
looks into it twice a second, while the rest computes, compiles or waits for another process.

    notice/turn/I    a signal came to some process, and process I knows; it goes on up to that turn at least. Who sees
                     another's tells its own, and all stop at the highest
    notice/left/I    process I ends, or has ended: its exit code, and why
    alive/I          a number that grows as long as process I lives, and how far its work has come; process 0 watches
                     over all of them, and process 1 over process 0
    notice/late/I, answer/I    who is late, and where all of them stand (roll_call.py)
"""

import contextlib
import threading
import time

from pretrain.distributed.roll_call import RollCall
from pretrain.distributed.shutdown import FAULT, Leaving

POLL = 0.5  # seconds between looks
BEAT = 4  # looks from one sign of life to the next: each is asked of process 0, whose time it takes
SILENT = 20.0  # seconds without a sign of life after which a process counts as killed; see `_watch`
EVER = 1 << 40  # milliseconds that a meeting may take
PATIENCE = 5.0  # seconds that one which ends waits for the others to hear of it
GONE = "has ended without a word (killed, or its machine lost)"


class UnansweredError(Exception):
    """The store did not answer: a connection broke, for a moment or for good."""


class Others:
    """What process `index` of `count` knows of the others; `store` is JAX's client of the coordination service."""

    def __init__(self, leaving: Leaving, store, index: int, count: int):
        self._leaving, self._store, self._index, self._count = leaving, store, index, count
        self._turn = 0  # how often `reached` was called
        self._proposed: int | None = None
        self._turns: dict[int, int] = {}
        self._lock = threading.Lock()
        self._met = 0  # how often `meet` was called
        self._rounds = self._heard = self._unheard = 0  # looks that ended; ticks since the last one that did
        self._lost = False  # the store does not answer
        self._roll_call = RollCall(leaving, index, count, self._put, self._read)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="others", daemon=True)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether a turn at which all stop is being found."""
        return self._proposed is not None

    def reached(self) -> bool:
        """Whether this is the turn at which all stop. Costs nothing until one was asked to.

        A process that has heard proposes the turn it is about to reach, and there waits for the others' proposals:
        its thread makes them, so that one which waits for its peers in the middle of an update proposes too.
        """
        with self._lock:
            self._turn += 1
            if self._proposed is None or self._turn < self._proposed:
                return False
        while len(self._turns) < self._count:
            time.sleep(POLL / 10)
        return self._turn >= max(self._turns.values())

    def meet(self) -> None:
        """Returns once all have called it; how long one may be late is for the watchdog to say."""
        self._met += 1
        self._store.wait_at_barrier(f"longhaul/{self._met}", EVER)

    def leave(self, code: int, sentence: str) -> None:
        """Tells the others that this process ends, and waits a moment until they have heard; process 0 goes last."""
        if self._lost:
            return
        told, heard, deadline = False, 0, time.monotonic() + PATIENCE
        while heard < self._count and time.monotonic() < deadline:
            try:
                if not told:
                    self._put(f"notice/left/{self._index}", f"{code} {sentence}")
                told = True
                heard = len(self._read("notice/left/"))
            except UnansweredError:
                if told and self._index:
                    return  # process 0 has heard, and has gone with the store
            time.sleep(POLL / 5)
        if self._index == 0:
            time.sleep(POLL)

    def ask_for_the_cause(self) -> None:
        """Returns if the failure that this process met is its own; otherwise leaves with the other's code and words.

        It is another's if that one has said so, or has said nothing since: what breaks here is then a connection.
        """
        answered = threading.Event()
        if self._index:
            threading.Thread(target=self._expect, args=(answered,), daemon=True).start()
        before, silent = {}, [0] * (self._index > 0)  # until it has answered
        for _ in range(round(PATIENCE / (POLL / 2))):  # looks, as in `_watch`
            with contextlib.suppress(UnansweredError):
                self._follow(self._read("notice/left/"))
                now = self._read("alive/")
                if before:
                    same = [i for i in range(self._count) if now.get(str(i)) == before.get(str(i))]
                    silent = [i for i in same if i != self._index]
                    if not silent:
                        break
                before = before or now
            time.sleep(POLL / 2)
        answered.set()
        if silent:
            self._gone(silent[0])

    def stop(self) -> None:
        """Watches no longer: a thread that is in the store when the interpreter goes would abort the process."""
        self._over.set()
        self._thread.join(PATIENCE)

    def _watch(self) -> None:
        """Looks, and as process 0 counts how often in a row it found each process silent.

        Looks are counted and not seconds: a job that is suspended as a whole wakes one process at a time.
        """
        watched = {0: range(self._count), 1: [0]}.get(self._index, ())
        seen, silent = {}, dict.fromkeys(map(str, watched), 0)
        while not self._over.is_set():
            with contextlib.suppress(UnansweredError):  # of which `tick` counts how many there are in a row
                self._look(seen, silent)
                self._rounds += 1
            self._over.wait(POLL)

    def _look(self, seen: dict[str, str], silent: dict[str, int]) -> None:
        """One look: what was `seen` of each process's life, and how often in a row one was `silent`, are kept up."""
        beats = self._rounds % BEAT == 0
        if beats:
            self._put(f"alive/{self._index}", f"{self._rounds} {self._place()}")
        notices = self._read("notice/")
        self._follow({k.removeprefix("left/"): v for k, v in notices.items() if k.startswith("left/")})
        turns = {k.removeprefix("turn/"): v for k, v in notices.items() if k.startswith("turn/")}
        self._turns = {int(index): int(turn) for index, turn in turns.items()}
        if turns or self._leaving.asked:
            self._propose()
        self._roll_call.round({k.removeprefix("late/"): v for k, v in notices.items() if k.startswith("late/")})
        if silent and beats:
            alive = self._read("alive/")
            for index in silent:
                silent[index] = silent[index] + 1 if alive.get(index) == seen.get(index) else 0
                if silent[index] * BEAT * POLL > SILENT:
                    self._gone(int(index), alive.get(index, ""))
            seen.update(alive)

    def _follow(self, left: dict[str, str]) -> None:
        """Ends this process as the first of the others did that have."""
        for index, words in sorted(left.items()):
            if int(index) != self._index:
                code, _, sentence = words.partition(" ")
                if sentence.startswith(f"process {self._index} {GONE}"):
                    sentence = f"the run has ended: nothing was heard of process {self._index}, this one, for too long"
                self._leaving.leave(int(code), _of(index, sentence))

    def tick(self) -> None:
        """Called every `POLL` seconds by a thread that asks nobody: ends this process where process 0 has stopped."""
        self._unheard = 0 if self._rounds != self._heard else self._unheard + 1
        self._heard = self._rounds
        if self._unheard * POLL > SILENT and not self._over.is_set():
            self._unanswered()

    def _expect(self, answered: threading.Event) -> None:
        """Ends this process unless process 0 has answered within `SILENT` seconds of looks, as in `_watch`."""
        for _ in range(round(SILENT / POLL)):
            if answered.wait(POLL):
                return
        self._unanswered()

    def _unanswered(self) -> None:
        """Ends this process, since process 0 has not answered for too long: nothing more is asked of it."""
        self._lost = True
        self._gone(0)

    def _place(self) -> str:
        dog = self._leaving.watchdog
        return dog.place().words if dog else ""

    def _gone(self, index: int, last: str = "") -> None:
        where = last.partition(" ")[2]
        where = f", {where}" if where else ""
        self._leaving.leave(FAULT, f"process {index} {GONE}{where}; start the same command again")

    def _propose(self) -> None:
        with self._lock:
            if self._proposed is None:
                self._proposed = self._turn + 1
        self._put(f"notice/turn/{self._index}", str(self._proposed))

    def _put(self, key: str, value: str) -> None:
        try:
            self._store.key_value_set(f"longhaul/{key}", value, allow_overwrite=True)
        except Exception as error:
            raise UnansweredError from error

    def _read(self, folder: str) -> dict[str, str]:
        """The keys below `folder`, without its name, and their values."""
        below = f"longhaul/{folder}"
        try:
            return {key.removeprefix(below): value for key, value in self._store.key_value_dir_get(below)}
        except Exception as error:
            raise UnansweredError from error


def _of(index: str, sentence: str) -> str:
    """What a process says, with its name, unless it repeats another's words itself."""
    return sentence if sentence.startswith("process ") else f"process {index}: {sentence or 'ended'}"
