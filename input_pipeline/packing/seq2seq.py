"""Rows of (source, target) pairs of texts, as many as fit on both sides; planned once per stream and lengths."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from input_pipeline.packing.index_cache import IndexCache, pluralize, reduce_by_path
from input_pipeline.token_store.stream import Stream

OPEN = 64  # rows filled at a time; a pair that fits into none closes the oldest


class RawTexts(NamedTuple):
    """n raw rows of sources, T ids, and targets, T' ids; each text ends with an end token."""

    inputs: np.ndarray  # int32 [n, T]
    input_segments: np.ndarray  # int32 [n, T], pair within the row, from 1; 0 is padding
    input_positions: np.ndarray  # int32 [n, T], place in the text
    targets: np.ndarray  # int32 [n, T']
    segments: np.ndarray  # int32 [n, T']
    positions: np.ndarray  # int32 [n, T']


class Plan(NamedTuple):
    """Row i holds documents documents[first[i]] .. documents[first[i + 1] - 1]."""

    first: np.ndarray  # int64 [rows + 1]
    documents: np.ndarray  # int64 [documents]

    __reduce__ = reduce_by_path


def plan(stream: Stream, lengths: tuple[int, int], cache: IndexCache) -> Plan:
    """The plan of a stream for rows of `lengths` = (T, T')."""

    def build() -> Iterator[Plan]:
        sizes = pair_sizes(stream)
        pairs = pack(sizes, lengths)
        whole = (sizes > 0).all(1)
        report_losses((whole & (sizes >= lengths).any(1)).sum(), (~whole).sum(), cache)
        yield pairs

    action = f"packing {pluralize(stream.counts.documents, 'text pair')} into rows of {lengths[0]} and {lengths[1]}"
    return cache.load(Plan, f"texts-{stream.identity}-{lengths[0]}-{lengths[1]}-filled", build, action)


def pair_sizes(stream: Stream) -> np.ndarray:
    """Tokens of both texts of each document: int64 [documents, 2]."""
    fields = (stream.fields(document).values() for document in range(stream.counts.documents))
    sizes = np.fromiter((size for pair in fields for _, size in pair), np.int64, 2 * stream.counts.documents)
    return sizes.reshape(-1, 2)


def report_losses(cut: int, empty: int, cache: IndexCache) -> None:
    """Reports how many of a stream's pairs are cut to the row, and how many are left out."""
    if cut:
        cache.report(f"warning: {cut:,} text pairs are longer than a row and are cut; see data.length")
    if empty:
        cache.report(f"warning: {empty:,} text pairs have an empty text and are left out")


def pack(sizes: np.ndarray, lengths: tuple[int, int]) -> Plan:
    """Packs pairs of texts of `sizes` (int64 [n, 2]) first-fit into rows; pairs with an empty text are left out.

    Each text takes an end token more, and is cut to the row. `OPEN` rows are open at a time.
    """
    needs = np.minimum(sizes + 1, lengths)
    rows, open_rows = [], []
    for document in np.flatnonzero((sizes > 0).all(1)).tolist():
        source, target = needs[document].tolist()
        for row in open_rows:
            if row[0] >= source and row[1] >= target:
                break
        else:
            row = [*lengths, []]  # free tokens on both sides, and the documents
            open_rows.append(row)
            if len(open_rows) > OPEN:
                rows.append(open_rows.pop(0)[2])
        row[0] -= source
        row[1] -= target
        row[2].append(document)
    rows += [documents for _, _, documents in open_rows]
    first = np.cumsum([0, *map(len, rows)])
    return Plan(first, np.fromiter(itertools.chain.from_iterable(rows), np.int64, first[-1]))


class Texts:
    """Rows of pairs of texts under a plan."""

    def __init__(self, stream: Stream, plan: Plan, lengths: tuple[int, int], end: int):
        self.stream, self.plan, self.lengths, self.end = stream, plan, lengths, end

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> RawTexts:
        raw = RawTexts(*(np.zeros((len(rows), length), np.int32) for length in self.lengths for _ in range(3)))
        for slot, row in enumerate(rows.tolist()):
            documents = self.plan.documents[slice(*self.plan.first[row : row + 2].tolist())].tolist()
            places = [0, 0]  # tokens used on each side
            for segment, document in enumerate(documents, 1):
                for side, (start, size) in enumerate(self.stream.fields(document).values()):
                    ids, segments, positions = (field[slot] for field in raw[3 * side : 3 * side + 3])
                    # A text that is cut keeps its end token, so that decoding learns to stop.
                    begin, size = places[side], min(size, self.lengths[side] - 1)
                    last = begin + size
                    self.stream.copy(start, ids[begin:last])
                    ids[last] = self.end
                    segments[begin : last + 1] = segment
                    positions[begin : last + 1] = np.arange(size + 1)
                    places[side] = last + 1
        return raw
