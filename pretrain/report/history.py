"""The record of one run: config, metrics, starts, speed, checkpoints, from its work folder."""

import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from input_pipeline.batching.ramp import BatchSizes
from input_pipeline.io import open_path, read_json
from pretrain import workdir
from pretrain.config import as_tuples, flat
from pretrain.distributed.lock import read_holder
from pretrain.errors import UserError
from pretrain.metrics import goodput
from pretrain.workdir import Workdir

DEPTH = 3  # levels of folders below the given one that are searched for runs
SILENT = 600.0  # seconds without a row after which a run on another host counts as stopped
OTHER_FOLDERS = ("checkpoints", "metrics", "data", "tokenizer", "teacher", "profile")


@dataclasses.dataclass(frozen=True)
class History:
    """A run's record. Values are read once, at first use. Errors: OSError."""

    folder: Workdir

    @functools.cached_property
    def config(self) -> dict:
        """Dotted keys and values of the run's config; also of another version of the program."""
        return flat(as_tuples(read_json(self.folder.config)))

    @functools.cached_property
    def starts(self) -> list[list[dict]]:
        """Rows of `goodput.jsonl`, a list for each start: first its description, then its seconds."""
        found: list[list[dict]] = []
        for row in goodput.read_rows(self.folder.goodput) if self.folder.goodput.exists() else ():
            if "began" in row:
                found.append([row])
            elif found:
                found[-1].append(row)
        return found

    def rows(self, split: str) -> list[dict]:
        """Metrics of a split, from JSONL or else CSV; None for a number that is not finite."""
        for suffix, parse in ((".jsonl", _parse_jsonl), (".csv", _parse_csv)):
            path = workdir.rows(self.folder.metrics, split, suffix)
            if path.exists():
                return list(parse(path.read_text()))
        return []

    @functools.cached_property
    def train(self) -> list[dict]:
        return self.rows("train")

    @functools.cached_property
    def validation(self) -> list[dict]:
        return self.rows("validation")

    @property
    def steps(self) -> int:
        """Steps that the run is to make."""
        return self.config["train.steps"]

    @property
    def step(self) -> int:
        """The last step that was made."""
        last = self.starts[-1][-1].get("update", 0) if self.starts else 0
        return last or max((row["step"] for row in self.train[-1:]), default=0)

    @property
    def last_row_time(self) -> float | None:
        """Time of the last row, in seconds since 1970."""
        return self.starts[-1][-1]["time"] if self.starts else None

    def speeds(self) -> list[tuple[int, float]]:
        """(step, tokens per second up to it): tokens of the batches over time of steps and waits for data."""
        # Folders of older versions have no ramp.
        sizes = BatchSizes.build(self.config["train.batch_size"], self.config.get("train.batch_ramp", ()))
        found, length = [], self.config["data.length"]
        for _, *rows in self.starts:
            # The first step compiles, as in `Throughput`.
            for before, row in itertools.pairwise(row for row in rows if row["seconds"]["step"] > 0):
                spent = sum(row["seconds"][name] - before["seconds"][name] for name in ("step", "data"))
                made = sizes.rows_before(row["update"]) - sizes.rows_before(before["update"])
                if made > 0 and spent > 0:
                    found.append((row["update"], made * length / spent))
        return found

    @property
    def state(self) -> str:
        """`running`, `finished`, `stopped`, or `new` without a start."""
        holder = read_holder(self.folder)
        here = holder.get("host") == socket.gethostname()
        if holder and (_is_alive(holder["process"]) if here else time.time() - (self.last_row_time or 0) < SILENT):
            return "running" if holder["command"] == "train" else holder["command"]
        return "new" if not self.step else "finished" if self.step >= self.steps else "stopped"

    def checkpoints(self) -> list[dict]:
        """`step`, the `loss` that selects the best with its `measure`, and size in `bytes` of complete checkpoints.

        None stands for what is not recorded. Losses of different measures are not comparable.
        """
        return [{"step": step} | self._checkpoint(step) for step in self.folder.steps()]

    def _checkpoint(self, step: int) -> dict:
        folder, found = self.folder.checkpoint(step), {"loss": None, "measure": None, "bytes": None}
        if (folder / workdir.LOSS).is_file():
            recorded = read_json(folder / workdir.LOSS)
            found |= {name: recorded.get(name) for name in ("loss", "measure")}
        if (folder / workdir.RECORD).is_file():
            found["bytes"] = sum(size for size, _ in read_json(folder / workdir.RECORD).values())
        return found

    def summary(self) -> dict:
        """The row of `pretrain runs`."""
        last, scores, speeds = self.train[-1:], [row["loss"] for row in self.validation if row["loss"]], self.speeds()
        return {
            "run": str(self.folder.name),
            "state": self.state,
            "step": self.step,
            "steps": self.steps,
            "loss": last[0]["loss"] if last else None,
            "best_validation": min(scores, default=None),
            "tokens_per_second": speeds[-1][1] if speeds else None,
            "seen": self.last_row_time,
        }


def find_runs(folder: str, flag: str = "DIR") -> list[History]:
    """The runs below a folder, or the folder itself, with those that --fresh moved away. Errors: UserError."""
    root = open_path(folder)
    runs = list(_runs_below(root, DEPTH)) if root.is_dir() else []
    if not runs:
        raise UserError(f"{flag}={folder}: no run there. Give a folder of work folders, such as runs.")
    return [History(Workdir(path)) for path in runs]


def read_run(folder: str, flag: str) -> History:
    """The record of a run's folder. Errors: UserError."""
    if not _is_run(open_path(folder)):
        raise UserError(f"{flag}={folder}: no run there. Give a work folder, such as runs/quickstart.")
    return History(Workdir(folder))


def _is_run(path: Path | epath.Path) -> bool:
    """Whether its config.json is a run's: other programs have files of that name."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
        return "train.steps" in flat(read_json(path / workdir.CONFIG))
    return False


def _runs_below(path: Path | epath.Path, depth: int) -> Iterator[Path | epath.Path]:
    if run := _is_run(path):
        yield path
    with contextlib.suppress(PermissionError):
        inner = [path / "earlier"] if run else path.iterdir()
        for child in sorted(inner, key=str):
            if depth and child.name not in OTHER_FOLDERS and not child.name.startswith(".") and child.is_dir():
                yield from _runs_below(child, depth if run else depth - 1)


def _parse_jsonl(text: str) -> Iterator[dict]:
    for line in text.splitlines():
        # A killed process can leave a part of a line.
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _parse_csv(text: str) -> Iterator[dict]:
    complete = text[: text.rfind("\n") + 1]
    for row in csv.DictReader(io.StringIO(complete)):
        values = {name: float(value) for name, value in row.items() if value}
        finite = {name: value if abs(value) < float("inf") else None for name, value in values.items()}
        yield finite | {"step": int(row["step"])}


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
