"""Time of a run by category, over all of its starts: rows that each start appends, and their sum.

A start writes one row with its clock when it has restored, and then rows with the last step and the seconds by category
since that start: after restoring, with every save, at least every ten seconds in between, and at its end. A killed
process loses what came after its last row. An incomplete line is ignored.
"""

import contextlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

from input_pipeline import io
from pretrain.metrics.writer import StoreMirror

EVERY = 10.0  # seconds between two rows, at most, while training
PRODUCTIVE, LOST, STARTING, IDLE = "step", "lost", "start", "idle"
CATEGORIES = (PRODUCTIVE, "data", "compile", "save", "restore", "evaluate", STARTING, "other", LOST, IDLE)


class Goodput:
    """Appends rows to the file `path`, or nowhere if it is None; `age` is the age of this process in seconds."""

    def __init__(self, path: Path | None, age: float, **about):
        self._file, self._mirror, self._last = None, None, 0.0
        self._earlier, self._began = 0.0, time.monotonic() - age
        if path is None:
            return
        if io.is_remote(path):
            self._mirror = StoreMirror(path.parent)
            path = self._mirror.path / path.name
        if path.exists():
            before = summarize(path)
            self._earlier = before["total"] - before["seconds"][IDLE]
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self._file = path.open("a", buffering=1)  # every line reaches the kernel: kill -9 loses none
        if torn:
            self._file.write("\n")
        now = time.time()
        self._append({"began": now - age, "time": now} | about)

    def add(self, step: int, seconds: dict[str, float], saved: int = 0, now: bool = True) -> None:
        """Adds a row: `step` and the `seconds` by category so far. Without `now` only every `EVERY` seconds.

        `saved` is the step of the newest complete checkpoint, 0 for none.
        """
        if self._file and (now or time.monotonic() - self._last >= EVERY):
            rounded = {name: round(value, 4) for name, value in seconds.items()}
            self._append({"time": time.time(), "update": step, "saved": saved, "seconds": rounded})
            if now and self._mirror:
                self._mirror.upload()

    def elapsed(self) -> float:
        """Seconds of all starts up to now, without the time between them."""
        return self._earlier + time.monotonic() - self._began

    def _append(self, row: dict) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._last = time.monotonic()

    def close(self) -> None:
        for closable in filter(None, (self._file, self._mirror)):
            closable.close()
        self._file = None


def read_rows(path: Path) -> Iterator[dict]:
    """The complete rows of a file. Errors: OSError."""
    for line in path.read_bytes().splitlines():
        # A row torn by a kill or a full disk is no JSON: it ends before its brace.
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def last_saved_step(path: Path) -> int:
    """The step of the newest checkpoint that a file mentions; 0 for none. Errors: OSError."""
    rows = read_rows(path) if path.exists() else ()
    return max((row.get("saved", 0) for row in rows), default=0)


def summarize(path: Path) -> dict:
    """The time of a run: `seconds` by `CATEGORIES`, their `total`, `starts`, `updates`, `made_again`, `goodput`.

    `goodput` is the share of the time spent on steps that lasted. Steps that a later start or a rewind repeated are
    `lost`, with the wait for their data; between two rows each step counts the same. `idle` is from the last row of a
    start to the beginning of the next. Errors: OSError.
    """
    spent = dict.fromkeys(CATEGORIES, 0.0)
    stretches: list[list[float]] = []  # steps that last: [after, up to, seconds of steps, seconds of data]
    starts = repeated = step = 0
    before, ended, starting = {}, math.inf, None
    for row in read_rows(path):
        if "began" in row:
            # Clocks of hosts differ: no time is negative.
            spent[IDLE] += max(0.0, row["began"] - ended)
            starting = max(0.0, row["time"] - row["began"])
            spent[STARTING] += starting
            starts, before, ended = starts + 1, {}, row["time"]
            continue
        new = {name: value - before.get(name, 0.0) for name, value in row["seconds"].items()}
        # A step below the last one: a later start, or a rewind, repeats what came after it.
        if row["update"] < step:
            repeated += step - row["update"]
            spent[LOST] += _drop_steps(stretches, row["update"])
            step = row["update"]
        if starting is not None:
            # Until its first row a start has counted restoring twice: in its clock and in its seconds.
            new.pop("other", None)
            spent[STARTING] += max(-starting, row["time"] - ended - sum(new.values()))
        # Rows hold totals of a start: differences are what was spent since the row before.
        stretches.append([step, row["update"], new.pop("step", 0.0), new.pop("data", 0.0)])
        for name, value in new.items():
            spent[name] = spent.get(name, 0.0) + value
        before, ended, starting, step = row["seconds"], row["time"], None, row["update"]
    spent[PRODUCTIVE] = sum(stretch[2] for stretch in stretches)
    spent["data"] = sum(stretch[3] for stretch in stretches)
    total = sum(spent.values())
    return {
        "starts": starts,
        "updates": step,
        "made_again": repeated,
        "seconds": spent,
        "total": total,
        "goodput": spent[PRODUCTIVE] / total if total else 0.0,
    }


def _drop_steps(stretches: list[list[float]], last: int) -> float:
    """Remove the steps after `last` from the stretches; return their seconds."""
    lost = 0.0
    for stretch in stretches:
        after, upto, step, data = stretch
        if upto > last:
            # Between two rows each step takes as long as the others.
            share = (upto - last) / (upto - after) if after < last else 1.0
            lost += share * (step + data)
            stretch[1:] = [max(after, last), (1 - share) * step, (1 - share) * data]
    stretches[:] = [stretch for stretch in stretches if stretch[0] < last or stretch[2] or stretch[3]]
    return lost
