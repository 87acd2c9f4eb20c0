"""Metrics on disk: one CSV and one JSONL file per split, and TensorBoard events.

Rows are keyed by split and step. A run that is restored at step s first drops every later row, so that the files of a
resumed run equal those of an uninterrupted one, but for the columns of `MACHINE`.
"""

import csv
import io
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from input_pipeline import io as paths
from pretrain import workdir
from pretrain.errors import UserError
from pretrain.metrics.tables import one_line

SPLITS = ("train", "validation")  # other files in the folder are the user's
# Columns of training that measure the machine: a run that is repeated has others.
MACHINE = ("seconds", "tokens_per_second", "data_wait", "mfu", "device_peak_bytes", "host_peak_bytes")
Number = int | float
Row = dict[str, Number | str | None]  # `step` and the metrics


class MetricWriter:
    """Writes rows of metrics below `folder`: `<split>.csv`, `<split>.jsonl`, `tensorboard/`.

    `start_step` is the step that the run was restored at, 0 for a new one. Floats keep nine significant digits, which
    is every float32 exactly. A value that is not finite is nan, inf or -inf in CSV and null in JSONL. With all three
    formats off nothing is written. `named` are further splits. Errors: UserError, if a file there holds no metrics.
    """

    def __init__(
        self, folder: str | Path, tensorboard: bool, csv: bool, jsonl: bool, start_step: int, named: Sequence[str] = ()
    ):
        kinds = [kind for kind, wanted in ((CsvFile, csv), (JsonlFile, jsonl)) if wanted]
        self._files, self._events, self._mirror = {}, None, None
        if not (tensorboard or kinds):
            return
        self._mirror = StoreMirror(folder) if paths.is_remote(folder) else None
        folder = self._mirror.path if self._mirror else Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for split in (*SPLITS, *named):  # a split that the run has not reached again loses its later rows too
            self._files[split] = [kind(workdir.rows(folder, split, kind.suffix), start_step) for kind in kinds]
        if tensorboard:
            self._events = EventFile(workdir.events(folder), start_step)

    def write(self, split: str, step: int, values: dict[str, Number]) -> None:
        """Add the row of `split` at `step`; replace the last row if it has the same step."""
        row = {"step": int(step)} | {name: _round(value) for name, value in values.items()}
        for file in self._files.get(split, ()):
            file.append(row)
        if self._events:
            self._events.append(int(step), {f"{split}/{name}": float(value) for name, value in values.items()})

    def has(self, split: str, step: int) -> bool:
        """Whether the files hold the row of `split` at `step`; False without files."""
        files = self._files.get(split, ())
        return bool(files) and all(file.last == step for file in files)

    def flush(self) -> None:
        """Make all rows visible to others: upload them to a store. Call it before a checkpoint is saved."""
        if self._events:
            self._events.flush()
        if self._mirror:
            self._mirror.upload()

    def close(self) -> None:
        self.flush()
        for closable in (*itertools.chain(*self._files.values()), self._events, self._mirror):
            if closable:
                closable.close()


class JsonlFile:
    """A text file with one JSON object per row, in rising steps. Opening it drops rows after step `start`."""

    suffix = ".jsonl"

    def __init__(self, path: Path, start: int):
        self._path, self.last, self._file = path, -1, None
        if not path.exists():
            return
        text = path.read_text()
        complete = text[: text.rfind("\n") + 1]  # a killed process can leave a part of a line
        try:
            rows = [row for row in self.parse(complete) if 0 < int(row["step"]) <= start]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise UserError(f"{path}: not a file of metrics ({error}). Move it away.") from error
        self._rewrite(self.format(rows))
        self.last = max((int(row["step"]) for row in rows), default=-1)

    def append(self, row: Row) -> None:
        assert row["step"] >= self.last, f"{self._path.name} has step {self.last}: steps rise"
        if row["step"] == self.last:
            self._rewrite(self.format(self.parse(self._path.read_text())[:-1]))
        self.last, line = row["step"], self.line(row)
        if self._file is None:
            self._file = self._path.open("a", newline="")
        self._file.write(line)
        self._file.flush()  # the kernel has it: kill -9 loses no row

    def _rewrite(self, text: str) -> None:
        self.close()
        workdir.write(self._path, text.encode())

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def parse(self, text: str) -> list[Row]:
        return list(map(json.loads, text.splitlines()))

    def format(self, rows: list[Row]) -> str:
        return "".join(map(self.line, rows))

    def line(self, row: Row) -> str:
        return one_line(row) + "\n"


class CsvFile(JsonlFile):
    """Comma-separated values. A metric that appears later adds a column at the end, blank in earlier rows."""

    suffix = ".csv"

    def __init__(self, path, start):
        self._columns: list[str] = []
        super().__init__(path, start)

    def parse(self, text):
        return list(csv.DictReader(io.StringIO(text), strict=True))

    def format(self, rows):
        # A column that came after the last row of these has yet to come again.
        self._columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
        return self._lines(rows, header=True) if rows else ""

    def line(self, row):
        if new := [name for name in row if name not in self._columns]:
            # All rows are written again under a longer header: it happens once or twice in a run.
            rows = self.parse(self._path.read_text()) if self._columns else []
            self._columns += new
            self._rewrite(self._lines(rows, header=True))
        return self._lines([row])

    def _lines(self, rows, header=False):
        out = io.StringIO()
        writer = csv.DictWriter(out, self._columns, extrasaction="ignore", lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()


class EventFile:
    """TensorBoard events: a file for each start."""

    def __init__(self, folder: Path, start: int):
        # Imported here, before any step is timed: tensorboardX imports PyTorch if that is installed.
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.writer import FileWriter

        # The name has whole seconds only, which two starts may share.
        self._writer = FileWriter(str(folder), filename_suffix=f".{time.time_ns()}")
        # TensorBoard hides what an interrupted start wrote from this step on.
        self._writer.add_event(Event(step=start + 1, session_log=SessionLog(status=SessionLog.START)))
        self.flush, self.close = self._writer.flush, self._writer.close

    def append(self, step: int, values: dict[str, float]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_summary(Summary(value=scalars), step)


class StoreMirror:
    """A local copy of a folder in an object store, where nothing can be appended.

    `upload` replaces changed files. Rows since then are lost with the process, as are the steps since the last
    checkpoint, which write them again.
    """

    def __init__(self, folder: str | Path):
        self._remote, self._uploaded = paths.open_path(folder), {}
        self._temporary = tempfile.TemporaryDirectory(prefix="longhaul-metrics-")
        self.path = Path(self._temporary.name)
        for path in paths.files_below(self._remote):
            if path.suffix in (".csv", ".jsonl") and str(path.parent) == str(self._remote):
                (self.path / path.name).write_bytes(path.read_bytes())

    def upload(self) -> None:
        for path in paths.files_below(self.path):
            info = paths.info(path)
            if self._uploaded.get(path) != info:
                with paths.replace(self._remote / str(path.relative_to(self.path))) as partial:
                    partial.write_bytes(path.read_bytes())
                self._uploaded[path] = info

    def close(self) -> None:
        self._temporary.cleanup()


def _round(value: Number) -> Number:
    return value if isinstance(value, int) else float(f"{float(value):.9g}")
