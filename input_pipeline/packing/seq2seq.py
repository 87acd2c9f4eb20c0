"""Rows of pairs of texts, as many as fit: (source, target) on two sides, or translations in one row of the encoder.

Translations are framed and cut as in XLM (Lample and Conneau 2019, section 3). Rows are planned once per stream.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from input_pipeline.packing.concat import Raw
from input_pipeline.packing.index_cache import IndexCache, reduce_by_path
from input_pipeline.token_store.stream import Stream

OPEN = 64  # rows filled at a time; a pair that fits into none closes the oldest
FRAME = 4  # end tokens of a translation: one before and one behind each text


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

    def row(self, number: int) -> list[int]:
        """Documents of a row."""
        return self.documents[slice(*self.first[number : number + 2].tolist())].tolist()


def plan(stream: Stream, lengths: tuple[int, ...], cache: IndexCache) -> Plan:
    """The plan of a stream for rows of `lengths` = (T, T'), or (T,) if both texts share a row."""

    def build() -> Iterator[Plan]:
        count = stream.counts.documents
        sizes = (size for document in range(count) for _, size in stream.fields(document).values())
        sizes = np.fromiter(sizes, np.int64, 2 * count).reshape(-1, 2)
        whole = (sizes > 0).all(1)
        needs = sizes.sum(1, keepdims=True) + FRAME if shared else sizes + 1
        if cut := (needs[whole] > lengths).any(1).sum():
            cache.report(f"warning: {cut:,} text pairs are longer than a row and are cut; see data.length")
        if not whole.all():
            cache.report(f"warning: {(~whole).sum():,} text pairs have an empty text and are left out")
        yield pack(needs * whole[:, None], lengths)

    shared, name = len(lengths) == 1, "-".join(map(str, lengths))
    folder = f"{'translations' if shared else 'texts'}-{stream.identity}-{name}-filled"
    return cache.load(Plan, folder, build, f"packing text pairs into rows of {name}")


def pack(needs: np.ndarray, lengths: tuple[int, ...]) -> Plan:
    """Packs documents first-fit into rows of `lengths` tokens on each of S sides; `OPEN` rows are open at a time.

    needs: tokens that each document takes on each side, int64 [n, S], 0 if it is left out. Longer ones fill a row.
    """
    rows, open_rows = [], []
    for document in np.flatnonzero(needs.all(1)).tolist():
        need = np.minimum(needs[document], lengths).tolist()
        fits = (row for row in open_rows if all(map(int.__ge__, row[0], need)))
        if not (row := next(fits, None)):
            row = list(lengths), []  # free tokens on each side, and the documents
            open_rows.append(row)
            if len(open_rows) > OPEN:
                rows.append(open_rows.pop(0)[1])
        row[0][:] = map(int.__sub__, row[0], need)
        row[1].append(document)
    rows += [row for _, row in open_rows]
    first = np.cumsum([0, *map(len, rows)])
    return Plan(first, np.fromiter(itertools.chain.from_iterable(rows), np.int64, first[-1]))


class Texts:
    """Rows of (source, target) pairs of texts under a plan."""

    def __init__(self, stream: Stream, plan: Plan, lengths: tuple[int, int], end: int):
        self.stream, self.plan, self.lengths, self.end = stream, plan, lengths, end

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> RawTexts:
        raw = RawTexts(*(np.zeros((len(rows), length), np.int32) for length in self.lengths for _ in range(3)))
        for slot, row in enumerate(rows.tolist()):
            places = [0, 0]  # tokens used on each side
            for segment, document in enumerate(self.plan.row(row), 1):
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


class Translations:
    """Rows of pairs of texts: each text between end tokens with positions from 0, each pair a segment.

    languages: places of the two fields' languages in `data.languages`.
    """

    def __init__(self, stream: Stream, plan: Plan, length: int, end: int, languages: tuple[int, int]):
        self.stream, self.plan, self.length, self.end, self.languages = stream, plan, length, end, languages

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> Raw:
        ids = np.zeros((len(rows), self.length + 1), np.int32)
        segments, positions, languages = (np.zeros((len(rows), self.length), np.int32) for _ in range(3))
        for slot, row in enumerate(rows.tolist()):
            place = 0
            for segment, document in enumerate(self.plan.row(row), 1):
                pair = self.stream.fields(document).values()
                sizes = truncate(*(size for _, size in pair), self.length - FRAME)
                for (start, _), size, language in zip(pair, sizes, self.languages, strict=True):
                    # END text END, as XLM frames each of the two texts.
                    stop = place + size + 2
                    self.stream.copy(start, ids[slot, place + 1 : stop - 1])
                    ids[slot, [place, stop - 1]] = self.end
                    segments[slot, place:stop] = segment
                    positions[slot, place:stop] = np.arange(size + 2)
                    languages[slot, place:stop] = language
                    place = stop
        return Raw(ids[:, :-1], ids[:, 1:], segments, positions, segments > 0, languages=languages)


def truncate(one: int, other: int, room: int) -> tuple[int, int]:
    """Sizes of two texts cut to `room` in all: the longer one first, then both."""
    if one + other <= room:
        return one, other
    # Half of the room each (the odd token to the first), unless the other needs less.
    one = min(one, max(room - room // 2, room - other))
    return one, room - one
