"""Which of a run's processes is late: once one of them has come no further for too long, all say where they stand.

In a collective or at a barrier all wait for the last, so that each finds itself late. The call tells who keeps the
others waiting: where none gets on, the one that has come least far; and the run ends, to be started again.
"""

import json
import time
from collections.abc import Callable

from pretrain.distributed.shutdown import FAULT, Leaving
from pretrain.distributed.watchdog import Place, Watchdog, stacks

AGAIN = 1.1  # times as long as when it last called, a late process calls again where another one still got on
ANSWER = 10.0  # seconds within which a process that is asked says where it stands


class RollCall:
    """Calls all processes of a run once one of them is late, and names the last of them.

    `put(key, value)` and `read(folder)` are of the store that the processes share.

        notice/late/I    process I has come no further for too long: how far it is
        answer/I         of process I: the calls it has heard, whether it is late, or waits for a lock, place and stacks
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
        answers = {int(index): json.loads(answer) for index, answer in self._read("answer/").items()}
        answers = {i: a for i, a in answers.items() if a["calls"].get(str(self._index)) == self._called}
        heard = len(answers) == self._count
        if not all(answer["late"] for answer in answers.values()) or (heard and _held_up(answers)):
            self._called, self._until = "", AGAIN * dog.waited
        elif heard or time.monotonic() - self._since > ANSWER:
            self._leaving.leave(FAULT, verdict(answers, self._count, dog.waited))

    def _answer(self, calls: dict[str, str], dog: Watchdog | None) -> None:
        place = dog.place() if dog else Place(-1, "other", 0)
        late = dog is None or dog.late
        answer = {"calls": calls, "late": late, "queues": dog is not None and dog.queues, "turns": place.turns}
        answer |= {"words": place.words, "stacks": stacks()}
        self._put(f"answer/{self._index}", json.dumps(answer))
        self._answered = calls


def _last(answers: dict[int, dict]) -> list[int]:
    """The processes that have come least far; none that waits for a lock which another one of them may hold."""
    turns = min(answer["turns"] for answer in answers.values())
    last = [index for index in sorted(answers) if answers[index]["turns"] == turns]
    return [index for index in last if not answers[index]["queues"]] or last


def _held_up(answers: dict[int, dict]) -> bool:
    """Whether those that have come least far all wait for a lock: another run holds it, and may take its time."""
    return all(answers[index]["queues"] for index in _last(answers))


def verdict(answers: dict[int, dict], count: int, waited: float) -> str:
    """The sentence that names the last of `count` processes, of which some have answered, and where it stands."""
    silent = [index for index in range(count) if index not in answers]
    if silent:
        named = ", ".join(map(str, silent))
        return (
            f"process {named} {'does' if len(silent) == 1 else 'do'} not say how far the work has come, and the others "
            f"have waited for {waited:.0f} s; start the same command again to go on from the newest checkpoint"
        )
    late = _last(answers)
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
