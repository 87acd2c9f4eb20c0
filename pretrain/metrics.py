"""Metrics on disk: one CSV and one JSONL file per split, and TensorBoard's events.

Rows are keyed by split and step. A run restored at step s first drops every row after s, so that the files of a
resumed run hold the rows of an uninterrupted one, each once. A file that is damaged stops no run: it is set aside.
"""

import csv
import io
import itertools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

from pretrain.errors import UserError

Number = int | float
Row = dict[str, Number | str | None]  # one line of a file: `step` and the metrics


class MetricWriter:
    """Writes rows of metrics below `folder`; `start_step` is the update the run was restored at, 0 for a new one.

    Files: `<split>.csv`, `<split>.jsonl`, `tensorboard/`. Floats keep nine significant digits, which is every
    float32 exactly. A value that is not finite is `nan`, `inf` or `-inf` in CSV and null in JSONL, because JSON
    has no word for it. With all three formats off nothing is written and no folder made (what processes other
    than the first one ask for). `report` hears of files that are set aside, under another name in the same folder.
    Errors: UserError where `folder` is a file.
    """

    def __init__(
        self,
        folder: str | Path,
        tensorboard: bool,
        csv: bool,
        jsonl: bool,
        start_step: int,
        report: Callable[[str], None] = print,
    ):
        self._folder = Path(folder)
        self._start, self._report = start_step, report
        self._kinds = [kind for kind, wanted in ((CsvFile, csv), (JsonlFile, jsonl)) if wanted]
        self._files: dict[str, list[RowFile]] = {}
        self._events = None
        if tensorboard or self._kinds:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except FileExistsError:
                raise UserError(f"{folder} is a file, and is to be the folder of metrics; move it away") from None
        for kind in self._kinds:  # splits that the run has not reached again yet lose their later rows too
            for path in self._folder.glob(f"*{kind.suffix}"):
                self._open(path.stem)
        if tensorboard:
            from tensorboardX import SummaryWriter  # here because its import takes as long as all of this file's

            # TensorBoard itself hides the events of a crashed run from `purge_step` on.
            purge = start_step + 1 if start_step else None
            self._events = SummaryWriter(str(self._folder / "tensorboard"), purge_step=purge)

    def _open(self, split: str) -> "list[RowFile]":
        if split not in self._files:
            paths = [self._folder / f"{split}{kind.suffix}" for kind in self._kinds]
            self._files[split] = [
                kind(path, self._start, self._report) for kind, path in zip(self._kinds, paths, strict=True)
            ]
        return self._files[split]

    def write(self, split: str, step: int, values: dict[str, Number]) -> None:
        """Adds the row of `split` at `step`; a row that the restored run had already written is not repeated."""
        row = {"step": int(step), **{name: _number(value) for name, value in values.items()}}
        for file in self._open(split):
            file.append(row)
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(f"{split}/{name}", float(value), int(step))

    def flush(self) -> None:
        """Puts all rows on the disk; call it before a checkpoint is saved, so that none is older than its metrics."""
        for files in self._files.values():
            for file in files:
                file.flush()
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Flushes and closes every file."""
        self.flush()
        for files in self._files.values():
            for file in files:
                file.close()
        if self._events is not None:
            self._events.close()


class RowFile:
    """A text file of rows with rising steps, one line each. Taking it up keeps the whole rows up to `start`."""

    suffix: str

    def __init__(self, path: Path, start: int, report: Callable[[str], None]):
        self._path = path
        self._kept = self._last = -1
        self._file: int | None = None  # descriptor, from the first row on
        if path.exists():
            self._restore(start, report)

    def _restore(self, start: int, report: Callable[[str], None]) -> None:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
            whole = text[: text.rfind("\n") + 1]  # a killed process can leave a torn last line
            rows = [row for row in self.parse(whole) if 0 < int(row["step"]) <= start]
            text = self.text(rows)
        except (ValueError, KeyError, TypeError, OverflowError, csv.Error, IsADirectoryError):
            aside = self._aside()
            os.replace(self._path, aside)
            report(f"{self._path} is not a file of metrics; it is set aside as {aside.name}, and a new one begun")
            return
        self._kept = self._last = max((int(row["step"]) for row in rows), default=-1)
        self._replace(text)

    def _aside(self) -> Path:
        """A name beside the file that nothing has yet."""
        names = (self._path.with_name(f"{self._path.name}.damaged{number or ''}") for number in itertools.count())
        return next(path for path in names if not path.exists())

    def _replace(self, text: str) -> None:
        """The whole file becomes `text`, or stays as it is if the process dies on the way."""
        self.close()
        new = self._path.with_name(self._path.name + ".new")
        with new.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)

    def append(self, row: Row) -> None:
        if row["step"] <= self._kept:
            return
        if row["step"] <= self._last:
            raise ValueError(f"{self._path.name} holds step {self._last} already; rows must come in rising steps")
        self._last = row["step"]
        line = self.line(row).encode()
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        before = os.fstat(self._file).st_size
        try:
            while line:  # at once: kill -9 loses no row
                line = line[os.write(self._file, line) :]
        except OSError:
            os.ftruncate(self._file, before)  # a disk that is full takes a part: no row is left torn
            raise

    def flush(self) -> None:
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def parse(self, text: str) -> list[Row]:
        raise NotImplementedError

    def text(self, rows: list[Row]) -> str:
        raise NotImplementedError

    def line(self, row: Row) -> str:
        raise NotImplementedError


class JsonlFile(RowFile):
    """One JSON object per line."""

    suffix = ".jsonl"

    def parse(self, text):
        return [json.loads(line) for line in text.splitlines()]

    def text(self, rows):
        return "".join(map(self.line, rows))

    def line(self, row):
        finite = {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}
        return json.dumps(finite, allow_nan=False) + "\n"


class CsvFile(RowFile):
    """Comma-separated values. The first row fixes the columns; a metric first seen later adds one at the end,
    blank in the rows before it."""

    suffix = ".csv"

    def __init__(self, path, start, report):
        self._columns: list[str] = []
        super().__init__(path, start, report)

    def parse(self, text):
        return list(csv.DictReader(io.StringIO(text), strict=True))

    def text(self, rows):
        if any(None in row or None in row.values() for row in rows):
            raise ValueError("a row with more or fewer values than there are columns")
        # A column that came after the last kept row has yet to come again.
        self._columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
        return ",".join(self._columns) + "\n" + self.lines(rows) if rows else ""

    def line(self, row):
        if any(name not in self._columns for name in row):
            self._widen(row)
        return self.lines([row])

    def lines(self, rows):
        out = io.StringIO()
        csv.DictWriter(out, self._columns, extrasaction="ignore", lineterminator="\n").writerows(rows)
        return out.getvalue()

    def _widen(self, row):
        rows = self.parse(self._path.read_text(encoding="utf-8")) if self._columns else []
        self._columns += [name for name in row if name not in self._columns]
        self._replace(",".join(self._columns) + "\n" + self.lines(rows))


def _number(value: Number) -> Number:
    return value if isinstance(value, int) else float(f"{float(value):.9g}")
