"""Packing whole documents into rows: planned once for a stream and a row length, kept on disk, read at random.

Documents longer than a row are cut into pieces. A piece of n tokens is n ids to read, each with the id after
it to predict, so that pieces partition the stream: every token and every separator is predicted once.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.files import checksum, locked, read_json, remove_partial, replaced, write_json, written_under
from input_pipeline.store.store import READ, Stream

MADE = "made.json"  # bytes and CRC-32 of a plan's files; written last
BLOCK = 1 << 16  # pieces packed together: a row's pieces lie near one another on disk, and planning is linear


class Plan(NamedTuple):
    """Row i holds pieces first[i] .. first[i + 1] - 1; piece j is ids starts[j] .. starts[j] + lengths[j] - 1."""

    first: np.ndarray  # int64 [rows + 1]
    starts: np.ndarray  # int64 [pieces]
    lengths: np.ndarray  # int32 [pieces]

    def __reduce__(self):
        """A plan on disk travels to other processes by name."""
        return _restored, tuple(field.filename if isinstance(field, np.memmap) else field for field in self)


def _restored(*fields) -> Plan:
    return Plan(*(field if isinstance(field, np.ndarray) else np.load(field, mmap_mode="r") for field in fields))


def plan(stream: Stream, length: int, folder: Path, report: Callable[[str], None], read_all: bool) -> Plan:
    """The stored plan for rows of `length`, made first if it is not there, and again where its files are damaged.

    Of a plan beyond `store.READ` bytes the sizes are compared with what was written, and the bytes where `read_all`.
    """
    folder = folder / f"packed-{stream.identity}-{length}"
    paths = [folder / f"{name}.npy" for name in Plan._fields]
    with written_under(folder, "data.store"):
        if not _whole(folder, paths, read_all):
            with locked(folder / "lock", lambda: report("waiting for another process to pack documents")):
                if not _whole(folder, paths, read_all):
                    remove_partial(folder)
                    report(f"packing {stream.counts.documents:,} documents into rows of {length}")
                    (folder / MADE).unlink(missing_ok=True)
                    for path, values in zip(paths, pack(stream.documents(), length), strict=True):
                        with replaced(path) as partial, open(partial, "wb") as file:
                            np.save(file, values)
                    write_json(folder / MADE, {path.name: [path.stat().st_size, checksum(path)] for path in paths})
    return _restored(*paths)


def _whole(folder: Path, paths: Sequence[Path], read_all: bool) -> bool:
    """Whether the files of a plan are there, as they were written."""
    try:
        made = read_json(folder / MADE)
        written = {path: tuple(map(int, made[path.name])) for path in paths}
        if any(path.stat().st_size != size for path, (size, _) in written.items()):
            return False
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False
    read = read_all or sum(size for size, _ in written.values()) <= READ
    return not read or all(checksum(path) == crc for path, (_, crc) in written.items())


def pack(documents: np.ndarray, length: int) -> Plan:
    """Packs documents of these sizes (tokens, end token included, int64 [documents]) into rows of `length`."""
    starts, lengths = _pieces(documents, length)
    order, rows = [], [np.zeros(1, np.int64)]
    for begin in range(0, len(lengths), BLOCK):
        for row in best_fit(lengths[begin : begin + BLOCK].tolist(), length):
            order.append(np.array(row, np.int64) + begin)
            rows.append(np.array([len(row)], np.int64))
    order = np.concatenate(order) if order else np.zeros(0, np.int64)
    return Plan(np.cumsum(np.concatenate(rows)), starts[order], lengths[order].astype(np.int32))


def _pieces(documents: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of the documents' pieces, each at most `length` long, in order."""
    count = -(-documents // length)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)  # which piece of its document
    starts = np.repeat(np.cumsum(documents) - documents, count) + within * length
    return starts, np.minimum(np.repeat(documents, count) - within * length, length)


def best_fit(lengths: list[int], capacity: int) -> Iterator[list[int]]:
    """Rows as lists of pieces: longest piece first, each into the row that it fills best.

    Rows with room r wait in room[r], and bit r of `open_rows` says that there are any, so that the fullest
    row with enough room is found in one operation.
    """
    rows, room, open_rows = [], {}, 0
    for piece in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        need = lengths[piece]
        enough = open_rows >> need
        if enough:
            left = need + (enough & -enough).bit_length() - 1
            row = room[left].pop()
            if not room[left]:
                open_rows ^= 1 << left
        else:
            left, row = capacity, []
            rows.append(row)
        row.append(piece)
        left -= need
        if left:
            room.setdefault(left, []).append(row)
            open_rows |= 1 << left
    return rows
