"""Tables as documents, one a row: Parquet, Arrow, Hugging Face datasets on disk, CSV and TSV with a header."""

import collections
import contextlib
import csv
import functools
import glob
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from input_pipeline.errors import DataError
from input_pipeline.io import info, is_remote, open_path, read_json
from input_pipeline.sources.base import BadRecord, Document, Span
from input_pipeline.sources.records import Choice, Convert, name_class, shortest_float
from input_pipeline.sources.text import CONVERT, open_bytes

STATE, SPLITS = "state.json", "dataset_dict.json"  # of what `datasets` saves: a dataset, and a folder of several
ROWS = 1000  # at a time of a row group
MAGIC = b"ARROW1"  # at the beginning of Arrow's file format; streams begin otherwise
CELL = 1 << 28  # characters at most: an opened quote without its end would read the rest of the file
Stretch = tuple[int, int | None, int]  # of a file: start, end, approximate bytes


def dataset_pattern(spec: str, folder: str) -> str:
    """The glob of the files that `datasets.save_to_disk` wrote to a folder; `folder` itself if that wrote none there.

    Files of an earlier save, of another number, and caches may be next to them.
    """
    if glob.has_magic(folder) if is_remote(folder) else not os.path.isdir(folder):
        return folder
    root = open_path(folder)
    if (root / SPLITS).is_file():
        names = read_json(root / SPLITS)["splits"]
        raise DataError(f"'{spec}' has splits {', '.join(names)}. Write arrow:{folder}/{names[0]}.")
    if not (root / STATE).is_file():
        return folder
    names = [file["filename"] for file in read_json(root / STATE)["_data_files"]]
    if missing := [name for name in names if not (root / name).is_file()]:
        raise DataError(f"'{spec}': {folder}/{missing[0]} is missing. Save the dataset again.")
    return os.path.join(folder, re.sub(r"-\d+-of-", "-*-of-", names[0])) if names else folder


def _arrow():
    """The package pyarrow, with its modules for files."""
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise DataError("parquet: and arrow: need the package pyarrow. Run pip install -e '.[parquet]'.") from None
    return pyarrow


@contextlib.contextmanager
def _reading(path: str, kind: str) -> Iterator:
    """Yields pyarrow for reading a file. Errors: DataError for one that is damaged or of another kind."""
    arrow = _arrow()
    try:
        yield arrow
    except (arrow.ArrowException, OSError) as error:
        # Faults of the machine have a number; pyarrow raises OSError without one for damaged pages.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).partition("\n")[0].rstrip(".")[:80]
        raise DataError(f"{path} is damaged or no {kind} file ({reason}). Download or write it again.") from error


def parquet_stretches(path: str, start: int, end: int, target: int) -> Iterator[Stretch]:
    """Row groups of a file, in stretches of about `target` bytes before decoding."""
    with _reading(path, "Parquet") as arrow, open_path(path).open("rb") as file:
        metadata = arrow.parquet.ParquetFile(file).metadata
        first = size = 0
        for group in range(metadata.num_row_groups):
            size += metadata.row_group(group).total_byte_size
            if size >= target or group == metadata.num_row_groups - 1:
                yield first, group + 1, size
                first, size = group + 1, 0


def parquet_documents(span: Span, choice: Choice) -> Iterator[Document | BadRecord]:
    """The rows of a stretch of row groups, each of which is read once."""
    with _reading(span.path, "Parquet") as arrow, open_path(span.path).open("rb") as file:
        table = arrow.parquet.ParquetFile(file)
        names, rows = table.schema_arrow.names, _Rows(table.schema_arrow, choice, span.path, arrow.types)
        # A path through structs reads one leaf of them; items of lists have no columns of their own.
        columns = [name if name in names else re.split(r"\.\d+(?:\.|$)", name)[0] for name in choice.names or names]
        for group in range(span.start, span.end):
            batches = table.iter_batches(ROWS, row_groups=[group], columns=columns)
            yield from rows.documents(batches, f"{span.path}, row group {group}")


def arrow_stretches(path: str, start: int, end: int, target: int) -> Iterator[Stretch]:
    """Record batches of a file or stream, in stretches of about `target` bytes. A store's file is read at once."""
    size = info(open_path(path)).size
    if is_remote(path):
        yield 0, None, size
        return
    with _reading(path, "Arrow") as arrow, _batches(arrow, path) as batches:
        # A mapped batch is not read until its columns are.
        count = sum(1 for _ in batches(0))
    # Batches of one file have about as many rows each.
    step = max(1, count * target // max(size, 1))
    for first in range(0, count, step):
        last = min(first + step, count)
        yield first, last, size * (last - first) // count


def arrow_documents(span: Span, choice: Choice) -> Iterator[Document | BadRecord]:
    """The rows of a stretch of record batches."""
    with _reading(span.path, "Arrow") as arrow, _batches(arrow, span.path) as batches:
        for number, batch in enumerate(itertools.islice(batches(span.start), span.end and span.end - span.start)):
            rows = _Rows(batch.schema, choice, span.path, arrow.types)
            where = f"{span.path}, record batch {span.start + number}"
            yield from rows.documents([batch.select(list(rows.columns))], where)


@contextlib.contextmanager
def _batches(arrow, path: str) -> Iterator[Callable[[int], Iterator]]:
    """Yields a function: the record batches of a file or stream from a number on, read once."""
    with open_path(path).open("rb") if is_remote(path) else arrow.memory_map(path) as file:
        magic = file.read(len(MAGIC))
        file.seek(0)
        if magic == MAGIC:
            reader = arrow.ipc.open_file(file)
            yield lambda start: map(reader.get_batch, range(start, reader.num_record_batches))
        else:
            stream = arrow.ipc.open_stream(file)
            yield lambda start: itertools.islice(stream, start, None)


class _Rows:
    """Makes documents of rows of a schema. Errors: DataError if it lacks a column."""

    def __init__(self, schema, choice: Choice, path: str, types):
        features = json.loads((schema.metadata or {}).get(b"huggingface", "{}")).get("info", {}).get("features", {})
        self.columns: dict[str, None] = {}  # top-level names, in order
        convert: dict[str, Convert] = {}
        for name in choice.names or schema.names:
            steps = [name] if name in schema.names else name.split(".")
            kind = _type_at(schema, steps, types)
            if kind is None:
                columns = ", ".join(_leaves(schema, types))
                raise DataError(f"field={name}: {path} has no such column. Choose from: {columns}.")
            self.columns[steps[0]] = None
            if (classes := _class_names(features, steps)) and choice.labels == "names":
                convert[name] = functools.partial(name_class, names=classes)
            elif types.is_float32(kind) or types.is_float16(kind):
                convert[name] = shortest_float
        self._read = choice.reader(convert)

    def documents(self, batches, where: str) -> Iterator[Document | BadRecord]:
        """Documents of the rows of a row group or record batch, which `where` names."""
        row = -1
        for batch in batches:
            names = batch.schema.names
            for values in zip(*batch.columns, strict=True):
                row += 1
                try:
                    document = self._read({name: value.as_py() for name, value in zip(names, values, strict=True)})
                except ValueError as error:  # of its fields, or of UTF-8
                    document = BadRecord(f"{where}, row {row}:", f"{str(error).rstrip('.')}.")
                yield document


def _type_at(schema, steps: Sequence[str], types):
    """The type of a schema's column or of a part of it; None if it has no such part."""
    index = schema.get_field_index(steps[0])
    kind = schema.field(index).type if index >= 0 else None
    for step in steps[1:]:
        if types.is_struct(kind) and kind.get_field_index(step) >= 0:
            kind = kind.field(step).type
        else:
            kind = getattr(kind, "value_type", None) if step.isdecimal() else None
    return kind


def _leaves(fields: Iterable, types, path: str = "") -> Iterator[str]:
    """Paths of the columns of a schema, and of their parts."""
    for field in fields:
        name, kind = path + field.name, field.type
        while types.is_list(kind) or types.is_large_list(kind):
            name, kind = f"{name}.0", kind.value_type
        yield from _leaves(kind, types, f"{name}.") if types.is_struct(kind) else [name]


def _class_names(features: Mapping, steps: Sequence[str]) -> list[str]:
    """Names of classes at a path of the features that `datasets` keeps in a schema; [] if it has none."""
    feature = features
    for step in steps:
        # A list of features is written as a list of one, or as a dict with a type; of dicts, it is a column per key.
        while isinstance(feature, list) or (isinstance(feature, dict) and {"feature", "_type"} <= feature.keys()):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        if not step.isdecimal():
            feature = feature.get(step) if isinstance(feature, dict) else None
    return feature["names"] if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else []


def csv_stretches(path: str, start: int, end: int, target: int, quotes: str) -> Iterator[Stretch]:
    """Rows of a whole file in stretches of about `target` bytes."""
    first = 0
    with open_bytes(path, 0) as stream:
        while block := stream.read(target):
            last, quoted = first, False
            while block:
                last += len(block)
                # An odd number of quotes opens or closes a cell; a doubled quote is no change.
                quoted ^= quotes == "yes" and block.count(b'"') % 2 == 1
                # To the end of a line that is not within a cell.
                block = b"" if block.endswith(b"\n") and not quoted else stream.readline()
            yield first, last, last - first
            first = last


def csv_documents(
    span: Span, choice: Choice, delimiter: str, quotes: str, columns: Sequence[str]
) -> Iterator[Document | BadRecord]:
    """The rows of a stretch of a file, whose first row names the fields if `columns` do not."""
    header = list(columns) or next((row for _, row in _csv_rows(span.path, 0, None, delimiter, quotes)), None)
    if not isinstance(header, list):
        raise DataError(f"{span.path} has no header. Name its columns there, or by columns=.")
    if missing := [name for name in choice.names if name not in header]:
        raise DataError(f"field={missing[0]}: {span.path} has no such column. Choose from: {', '.join(header)}.")
    read = choice.reader({})
    rows = _csv_rows(span.path, span.start, span.end, delimiter, quotes)
    for offset, row in itertools.islice(rows, span.start == 0 and not columns, None):
        try:
            if isinstance(row, csv.Error):
                raise DataError(f"{row}. Add quotes=none if quotes are text")
            if len(row) != len(header):
                raise DataError(f"it has {len(row)} cells and the header {len(header)}")
            document = read(dict(zip(header, row, strict=True)))
        except UnicodeEncodeError:
            document = BadRecord(span.path, f"is not UTF-8 text. {CONVERT}", offset)
        except DataError as error:
            document = BadRecord(span.path, f"is no usable row: {str(error).rstrip('.')}.", offset)
        yield document


def _csv_rows(
    path: str, start: int, end: int | None, delimiter: str, quotes: str
) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """(offset, cells) of the rows that begin in [start, end); an error in place of cells that cannot be split.

    After such a row reading goes on with the next line. Errors: DataError if a row goes on behind `end`.
    """
    csv.field_size_limit(CELL)
    quoting = csv.QUOTE_MINIMAL if quotes == "yes" else csv.QUOTE_NONE
    offset, taken, again = start, [], collections.deque()  # lines of the present row, and those to read again
    with open_bytes(path, start) as stream:

        def lines() -> Iterator[str]:
            nonlocal offset
            while line := again.popleft() if again else stream.readline():
                text = line if offset else line.removeprefix(b"\xef\xbb\xbf")
                offset += len(line)
                taken.append(line)
                # Bytes that are no UTF-8 become surrogates: only cells that are used matter.
                yield text.decode("utf-8", "surrogateescape")

        def reader():
            return csv.reader(lines(), delimiter=delimiter, quoting=quoting, strict=True)

        rows = reader()
        while end is None or offset < end:
            begin = offset
            taken.clear()
            try:
                row = next(rows, None)
            except csv.Error as error:
                row, rows = error, reader()
                again.extendleft(reversed(taken[1:]))  # an open quote takes all lines to the end of the file
                offset -= sum(map(len, taken[1:]))
            if row is None:
                return
            if row:
                yield begin, row
        if end is not None and offset > end:
            raise DataError(
                f"{path}: a quote within a cell that has none around it. Add quotes=none if quotes are text."
            )
