"""Where the time of a run went, over all of its starts: rows that each start appends, and their sum.

A start writes one row with its clock, once it has restored what it goes on from, and then rows of the last update made
and of the seconds spent by category since that start began: where it goes on from, with every save, at least every ten
seconds between, and at its end. What is killed loses what came after its last row. A row that was cut short is no row.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from input_pipeline.io import is_remote
from pretrain.metrics.staged import Staged
from pretrain.metrics.writer import append, open_rows

EVERY = 10.0  # seconds between two rows, at most, while updates are made
# What the seconds of a run are summed up as.
PRODUCTIVE, LOST, STARTING, IDLE = "step", "lost", "start", "idle"
CATEGORIES = (PRODUCTIVE, "data", "compile", "save", "restore", "evaluate", STARTING, "other", LOST, IDLE)
LARGEST = 1e15  # of any number in a row: sums of such are finite
BEGINNING = {"began": (int, float), "time": (int, float)}  # what rows hold
PROGRESS = {"update": int, "seconds": dict, "time": (int, float)}


class Goodput:
    """Appends to the file `path`, or to none where that is None; `age` is how old this process is, in seconds."""

    def __init__(self, path: Path | None, age: float, **about):
        self._file, self._path, self._last, self._staged = None, path, 0.0, None
        if path is None:
            return
        if is_remote(path):
            self._staged = Staged(path.parent)
            path = self._path = self._staged.path / path.name
        self._file = open_rows(path)
        size = os.fstat(self._file).st_size
        torn = b"\n" if size and os.pread(self._file, 1, size - 1) != b"\n" else b""
        now = time.time()
        self._append({"began": now - age, "time": now} | about, torn)

    def add(self, update: int, seconds: dict[str, float], saved: int = 0, now: bool = True) -> None:
        """The start has come to `update`, having spent so many `seconds`; unless `now`, only where a row is due.

        `saved` is the update of the newest checkpoint that is known to be whole, 0 where there is none.
        """
        if self._file is not None and (now or time.monotonic() - self._last >= EVERY):
            spent = {name: round(value, 4) for name, value in seconds.items()}
            self._append({"time": time.time(), "update": update, "saved": saved, "seconds": spent})
            if now and self._staged:
                self._staged.publish()

    def _append(self, row: dict, before: bytes = b"") -> None:
        append(self._file, before + json.dumps(row).encode() + b"\n")
        self._last = time.monotonic()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._staged:
            self._staged.close()


def rows(path: Path) -> Iterator[dict]:
    """The whole rows of a file. Errors: OSError."""
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _is_whole(row):
            yield row


def _is_whole(row: dict) -> bool:
    """Whether a row holds what one of its kind does, and numbers that can be added up."""
    kinds = BEGINNING if "began" in row else PROGRESS
    seconds = row["seconds"].values() if isinstance(row.get("seconds"), dict) else ()
    typed = all(isinstance(row.get(name), kind) for name, kind in kinds.items())
    numbers = [*(row.get(name) for name, kind in kinds.items() if kind is not dict), *seconds]
    return typed and all(isinstance(n, int | float) and abs(n) < LARGEST for n in numbers)


def newest_saved(path: Path) -> int:
    """The update of the newest checkpoint that the rows of a file know of; 0 where none does. Errors: OSError."""
    try:
        return max((row["saved"] for row in rows(path) if isinstance(row.get("saved"), int)), default=0)
    except FileNotFoundError:
        return 0


def summary(path: Path) -> dict:
    """What became of a run's time: `seconds` by `CATEGORIES`, their `total`, `starts`, `updates`, `made_again`, ...

    `goodput` is the share of the time in which updates were computed that lasted. Updates that a later start or a
    rewind made again are `lost`, with the wait for their data: between two rows each counts the same. `idle` is from
    the last row of a start to the beginning of the next. Errors: OSError.
    """
    spent = dict.fromkeys(CATEGORIES, 0.0)
    made: list[list[float]] = []  # stretches of updates that last: after which, up to which, seconds of step, of data
    starts = made_again = update = 0
    before, ended, starting = {}, None, None
    for row in rows(path):
        if "began" in row:
            if ended is not None:  # clocks of hosts differ: nothing lasts less than no time
                spent[IDLE] += max(0.0, row["began"] - ended)
            starting = max(0.0, row["time"] - row["began"])
            spent[STARTING] += starting
            starts, before, ended = starts + 1, {}, row["time"]
            continue
        new = {name: value - before.get(name, 0.0) for name, value in row["seconds"].items()}
        if row["update"] < update:
            made_again += update - row["update"]
            spent[LOST] += _lose(made, row["update"])
            update = row["update"]
        if starting is not None:  # all that came before updates, but for reading a checkpoint, which is in it so far
            new.pop("other", None)
            spent[STARTING] += max(-starting, row["time"] - ended - sum(new.values()))
        made.append([update, row["update"], new.pop("step", 0.0), new.pop("data", 0.0)])
        for name, value in new.items():
            spent[name] = spent.get(name, 0.0) + value
        before, ended, starting, update = row["seconds"], row["time"], None, row["update"]
    spent[PRODUCTIVE] = sum(stretch[2] for stretch in made)
    spent["data"] = sum(stretch[3] for stretch in made)
    total = sum(spent.values())
    return {
        "starts": starts,
        "updates": update,
        "made_again": made_again,
        "seconds": spent,
        "total": total,
        "goodput": spent[PRODUCTIVE] / total if total else 0.0,
    }


def _lose(made: list[list[float]], update: int) -> float:
    """Takes the updates after `update` out of the stretches; returns the seconds that went into them."""
    lost = 0.0
    for stretch in made:
        after, upto, step, data = stretch
        if upto > update:
            share = (upto - update) / (upto - after) if after < update else 1.0
            lost += share * (step + data)
            stretch[1:] = [max(after, update), (1 - share) * step, (1 - share) * data]
    made[:] = [stretch for stretch in made if stretch[0] < update or stretch[2] or stretch[3]]
    return lost
