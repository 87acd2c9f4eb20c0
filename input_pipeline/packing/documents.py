"""Packing whole documents into rows (layout packed), planned once per stream and row length.

Documents longer than a row are cut into pieces. A piece of n tokens is n ids to read, each with the next id as its
target, so pieces partition the stream: every token and every end token is predicted once.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from input_pipeline.packing.concat import Raw
from input_pipeline.packing.index_cache import IndexCache, reduce_by_path
from input_pipeline.token_store.stream import Stream

BLOCK = 1 << 16  # pieces packed together: planning stays linear, and a row's pieces are near one another on disk


class Plan(NamedTuple):
    """Row i holds pieces first[i] .. first[i + 1] - 1; piece j is ids starts[j] .. starts[j] + lengths[j] - 1."""

    first: np.ndarray  # int64 [rows + 1]
    starts: np.ndarray  # int64 [pieces]
    lengths: np.ndarray  # int32 [pieces]

    __reduce__ = reduce_by_path


def pack(documents: Iterable[np.ndarray], length: int) -> Iterator[Plan]:
    """Packs documents into rows of `length`; gives the plan in parts.

    documents: tokens of each document, end token included, some at a time (int64 [n]).
    """
    none = np.zeros(0, np.int64)
    yield Plan(np.zeros(1, np.int64), none, none.astype(np.int32))
    starts = lengths = none  # pieces that are not packed yet
    read = packed = 0
    for sizes in documents:
        ends = read + np.cumsum(sizes)
        begins, stops = cut_pieces(ends - sizes, ends, length)
        starts, lengths = np.append(starts, begins), np.append(lengths, stops - begins)
        read += int(sizes.sum())
        for _ in range(len(lengths) // BLOCK):
            yield _pack_block(starts[:BLOCK], lengths[:BLOCK], length, packed)
            starts, lengths, packed = starts[BLOCK:], lengths[BLOCK:], packed + BLOCK
    if len(lengths):
        yield _pack_block(starts, lengths, length, packed)


def _pack_block(starts: np.ndarray, lengths: np.ndarray, length: int, packed: int) -> Plan:
    """Rows of one block of pieces; `packed` pieces are in the blocks before."""
    # Pieces are stored in the order of rows, so that a row is a slice of the plan.
    rows = best_fit(lengths.tolist(), length)
    order = np.array([piece for row in rows for piece in row], np.int64)
    return Plan(np.cumsum([len(row) for row in rows]) + packed, starts[order], lengths[order].astype(np.int32))


def cut_pieces(starts: np.ndarray, ends: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of pieces of at most `most` tokens of stretches of text (int64 [n] each), empty ones left out."""
    count = -(-(ends - starts) // most)  # pieces of each stretch, rounded up
    # Number of each piece within its stretch: 0 1 2 0 0 1 ... for counts 3 1 2.
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    begins = np.repeat(starts, count) + within * most
    return begins, np.minimum(begins + most, np.repeat(ends, count))


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing bin packing: rows as lists of pieces, longest piece first."""
    # room[r] lists the rows with r free tokens; bit r of `open_rows` is set if there are any. Shifting by the need and
    # isolating the lowest bit finds the fullest row with enough room, without a search over rows.
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


class Packed:
    """Rows of whole documents: each document is a segment, and positions restart in it."""

    def __init__(self, stream: Stream, length: int, cache: IndexCache):
        name, action = f"packed-{stream.identity}-{length}", f"packing documents into rows of {length}"
        self.plan = cache.load(Plan, name, lambda: pack(stream.iter_document_sizes(), length), action)
        self.stream, self.length = stream, length

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> Raw:
        shape = len(rows), self.length
        raw = Raw(*(np.zeros(shape, np.int32) for _ in range(4)), np.zeros(shape, bool))
        for slot, row in enumerate(rows.tolist()):
            pieces = slice(*self.plan.first[row : row + 2].tolist())
            starts, lengths = self.plan.starts[pieces], self.plan.lengths[pieces]
            begins = np.cumsum(lengths) - lengths  # place of each piece in the row
            ids = np.empty(lengths.max() + 1, np.int32)
            for start, length, begin in zip(starts.tolist(), lengths.tolist(), begins.tolist(), strict=True):
                # One id more: the last token of a piece is followed by the end token, or by the document's next piece.
                self.stream.copy(start, ids[: length + 1])
                raw.ids[slot, begin : begin + length] = ids[:length]
                raw.following[slot, begin : begin + length] = ids[1 : length + 1]
            filled = int(lengths.sum())
            raw.segments[slot, :filled] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
            raw.positions[slot, :filled] = np.arange(filled) - np.repeat(begins, lengths)
            raw.scored[slot, :filled] = True
        return raw
