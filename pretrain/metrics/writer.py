"""Metrics on disk: one CSV and one JSONL file per split, and TensorBoard's events.

Rows are keyed by split and step. A run restored at step s first drops every row after s, so that the files of a
resumed run hold the rows of an uninterrupted one, each once. A file that is damaged stops no run: it is set aside.
"""

import csv
import io
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from input_pipeline.io import is_remote, make_folder, open_path
from pretrain import aside, workdir
from pretrain.errors import UserError
from pretrain.metrics.staged import Staged
from pretrain.metrics.tables import one_line

SPLITS = ("train", "validation")  # that training writes of; other files beside theirs are the user's
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
        self._kinds = [kind for kind, wanted in ((CsvFile, csv), (JsonlFile, jsonl)) if wanted]
        folder, wanted = open_path(folder), tensorboard or bool(self._kinds)
        self._staged = Staged(folder) if wanted and is_remote(folder) else None
        self._folder = self._staged.path if self._staged else folder
        self._start, self._report = start_step, report
        self._files: dict[str, list[RowFile]] = {}
        self._events: EventFile | None = None
        if wanted:
            try:
                make_folder(self._folder)
            except FileExistsError:
                raise UserError(f"{folder} is a file, and is to be the folder of metrics; move it away") from None
        for split in SPLITS:  # one that the run has not reached again yet loses its later rows too
            self._open(split)
        if tensorboard:
            self._events = EventFile(self._folder, start_step, report)

    def _open(self, split: str) -> "list[RowFile]":
        if split not in self._files:
            paths = [workdir.rows(self._folder, split, kind.suffix) for kind in self._kinds]
            self._files[split] = [
                kind(path, self._start, self._report) for kind, path in zip(self._kinds, paths, strict=True)
            ]
        return self._files[split]

    def write(self, split: str, step: int, values: dict[str, Number]) -> None:
        """Adds the row of `split` at `step`, in the place of the last one where that is of the same step."""
        row = {"step": int(step), **{name: _number(value) for name, value in values.items()}}
        for file in self._open(split):
            file.append(row)
        if self._events is not None:
            self._events.append(int(step), {f"{split}/{name}": float(value) for name, value in values.items()})

    def flush(self) -> None:
        """Puts all rows on the disk, or into the object store that `folder` lies in.

        Call it before a checkpoint is saved, so that none is older than its metrics.
        """
        for files in self._files.values():
            for file in files:
                file.flush()
        if self._events is not None:
            self._events.flush()
        if self._staged:
            self._staged.publish()

    def close(self) -> None:
        """Flushes and closes every file."""
        self.flush()
        for files in self._files.values():
            for file in files:
                file.close()
        if self._events is not None:
            self._events.close()
        if self._staged:
            self._staged.close()


class RowFile:
    """A text file of rows with rising steps, one line each. Taking it up keeps the whole rows up to `start`."""

    suffix: str

    def __init__(self, path: Path, start: int, report: Callable[[str], None]):
        self._path = path
        self._last = -1
        self._file: int | None = None  # descriptor, from the first row on
        if path.exists():
            self._restore(start, report)

    def _restore(self, start: int, report: Callable[[str], None]) -> None:
        try:
            text = self._path.read_bytes().decode(errors="replace")
            whole = text[: text.rfind("\n") + 1]  # a killed process can leave a torn last line
            rows = [row for row in self.parse(whole) if 0 < int(row["step"]) <= start]
            text = self.text(rows)
        except (ValueError, KeyError, TypeError, OverflowError, csv.Error, IsADirectoryError):
            _set_aside(self._path, "file", report)
            return
        self._last = max((int(row["step"]) for row in rows), default=-1)
        self._replace(text)

    def _replace(self, text: str) -> None:
        """The whole file becomes `text`, or stays as it is if the process dies on the way."""
        self.close()
        workdir.write(self._path, text.encode())

    def append(self, row: Row) -> None:
        if row["step"] < self._last:
            raise ValueError(f"{self._path.name} holds step {self._last} already; rows must come in rising steps")
        if row["step"] == self._last:
            rows = self.parse(self._path.read_bytes().decode())
            self._replace(self.text(rows[:-1]))
        self._last = row["step"]
        line = self.line(row).encode()
        if self._file is None:
            self._file = open_rows(self._path)
        append(self._file, line)

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
        return one_line(row) + "\n"


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
        return self.lines(rows, header=True) if rows else ""

    def line(self, row):
        if any(name not in self._columns for name in row):
            self._widen(row)
        return self.lines([row])

    def lines(self, rows, header=False):
        out = io.StringIO()
        writer = csv.DictWriter(out, self._columns, extrasaction="ignore", lineterminator="\n")
        if header:  # names have commas, as those of sources with two fields do
            writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def _widen(self, row):
        rows = self.parse(self._path.read_bytes().decode()) if self._columns else []
        self._columns += [name for name in row if name not in self._columns]
        self._replace(self.lines(rows, header=True))


class EventFile:
    """TensorBoard's events below `metrics`: a file for each start with a row, framed as TFRecord, one record for each.

    tensorboardX has the messages and the checksum. Its own writer hands them to a thread through a queue of ten: once
    a full disk has ended the thread, the queue is full and whoever logs waits for ever. A record takes microseconds.
    The library is read at once, so that no update is charged with it: it reads PyTorch too, where that is installed.
    """

    def __init__(self, metrics: Path, start: int, report: Callable[[str], None]):
        import tensorboardX.record_writer  # noqa: F401  for those alone who want events

        folder = workdir.events(metrics)
        if folder.exists() and not folder.is_dir():
            _set_aside(folder, "folder", report)
        folder.mkdir(exist_ok=True)
        self._start = start
        self._path = workdir.event_file(metrics, time.time(), socket.gethostname())
        self._file: int | None = None  # descriptor, from the first row on

    def _begin(self) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._file = open_rows(self._path, os.O_EXCL)
        self._write(Event(file_version="brain.Event:2"))
        # TensorBoard itself hides what a run that was cut short had written from this step on.
        self._write(Event(step=self._start + 1, session_log=SessionLog(status=SessionLog.START)))

    def append(self, step: int, values: dict[str, float]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        if self._file is None:
            self._begin()
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=scalars)))

    def _write(self, event) -> None:
        from tensorboardX.record_writer import masked_crc32c

        event.wall_time = time.time()
        record = event.SerializeToString()
        length = struct.pack("<Q", len(record))
        checksums = (struct.pack("<I", masked_crc32c(part)) for part in (length, record))
        append(self._file, length + next(checksums) + record + next(checksums))

    def flush(self) -> None:
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def append(descriptor: int, data: bytes) -> None:
    """Appends all of `data` to the file, or nothing."""
    left, before = data, os.fstat(descriptor).st_size
    try:
        while left:  # unbuffered: kill -9 loses no row
            left = left[os.write(descriptor, left) :]
    except OSError:
        os.ftruncate(descriptor, before)  # a full disk takes a part: no row is left torn
        raise


def open_rows(path: Path, more: int = 0) -> int:
    """A descriptor of a file that rows are appended to, made where it is not there; `more` flags of os.open."""
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | more, 0o644)


def _set_aside(path: Path, kind: str, report: Callable[[str], None]) -> None:
    """Renames what stands where a `kind` of metrics is to be, to a name beside it that nothing has yet."""
    to = aside.free(workdir.damaged(path))
    aside.move(path, to)
    report(f"{path} is not a {kind} of metrics; it is set aside as {to.name}, and a new one begun")


def _number(value: Number) -> Number:
    return value if isinstance(value, int) else float(f"{float(value):.9g}")
