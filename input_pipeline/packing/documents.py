"""Packing whole documents into rows: planned once for a stream and a row length, kept on disk, read at random.

Documents longer than a row are cut into pieces. A piece of n tokens is n ids to read, each with the id after
it to predict, so that pieces partition the stream: every token and every separator is predicted once.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.packing import index_cache
from input_pipeline.token_store.stream import Stream

BLOCK = 1 << 16  # pieces packed together: a row's pieces lie near one another on disk, and planning is linear


class Plan(NamedTuple):
    """Row i holds pieces first[i] .. first[i + 1] - 1; piece j is ids starts[j] .. starts[j] + lengths[j] - 1."""

    first: np.ndarray  # int64 [rows + 1]
    starts: np.ndarray  # int64 [pieces]
    lengths: np.ndarray  # int32 [pieces]

    __reduce__ = index_cache.by_name


def plan(stream: Stream, length: int, folder: Path, report: Callable[[str], None], read_all: bool) -> Plan:
    """The stored plan for rows of `length`, made first if it is not there, and again where its files are damaged."""
    return index_cache.kept(
        Plan,
        folder / f"packed-{stream.identity}-{length}",
        lambda: pack(stream.each_documents(), length),
        f"packing {index_cache.counted(stream.counts.documents, 'document')} into rows of {length}",
        report,
        read_all,
    )


def pack(documents: Iterable[np.ndarray], length: int) -> Iterator[Plan]:
    """Packs documents into rows of `length`: the plan, in stretches.

    documents: their sizes in order, some at a time (tokens, end token included, int64 [n]).
    """
    none = np.zeros(0, np.int64)
    yield Plan(np.zeros(1, np.int64), none, none.astype(np.int32))
    starts = lengths = none  # of pieces that are not packed yet
    read = packed = 0
    for sizes in documents:
        more = _pieces(sizes, length)
        starts, lengths = np.append(starts, more[0] + read), np.append(lengths, more[1])
        read += int(sizes.sum())
        for _ in range(len(lengths) // BLOCK):
            yield _block(starts[:BLOCK], lengths[:BLOCK], length, packed)
            starts, lengths, packed = starts[BLOCK:], lengths[BLOCK:], packed + BLOCK
    if len(lengths):
        yield _block(starts, lengths, length, packed)


def _block(starts: np.ndarray, lengths: np.ndarray, length: int, packed: int) -> Plan:
    """The rows of some pieces, which `packed` pieces come before."""
    rows = best_fit(lengths.tolist(), length)
    order = np.array([piece for row in rows for piece in row], np.int64)
    return Plan(np.cumsum([len(row) for row in rows]) + packed, starts[order], lengths[order].astype(np.int32))


def _pieces(documents: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of the documents' pieces, each at most `length` long, in order."""
    count = -(-documents // length)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)  # which piece of its document
    starts = np.repeat(np.cumsum(documents) - documents, count) + within * length
    return starts, np.minimum(np.repeat(documents, count) - within * length, length)


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
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
