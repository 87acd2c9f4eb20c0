"""Rows of one stretch of a document, mostly in two segments (layout halves; Clark et al. 2020, the released code).

Sentences are collected until they have as many tokens as a row (in 5% of the rows a random number) or their document
ends. The first segment takes sentences until it has half of the tokens; the one that would pass the half goes into
either with equal chance; a later one that still fits into the first joins it, so segments may skip sentences. 10% of
the rows are one segment. Tokens beyond a row are dropped.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline.packing.concat import Raw
from input_pipeline.packing.index_cache import IndexCache, reduce_by_path
from input_pipeline.packing.nsp_pairs import BLOCK, FRAME, LEAST, SEED, sentence_tables, stream_places
from input_pipeline.token_store.stream import Stream

WHOLE = 0.1  # share of rows of one segment
SHORT = 0.05  # share of rows of random length


class Plan(NamedTuple):
    """Row i is pieces first[i] .. first[i + 1] - 1, those of the second segment last."""

    first: np.ndarray  # int64 [rows + 1]
    starts: np.ndarray  # int64 [pieces], in the stream
    sizes: np.ndarray  # int32 [pieces], in tokens
    second: np.ndarray  # bool [pieces]: of the second segment

    __reduce__ = reduce_by_path


def split(bounds: np.ndarray, documents: np.ndarray, length: int, seed: int = SEED) -> Iterator[Plan]:
    """The plan for rows of `length`, in parts; `bounds` and `documents` as of `nsp_pairs.make_pairs`."""
    # One generator for the whole stream, in the order of the text, as in the release.
    draw = random.Random(seed)
    bounds, documents = (memoryview(np.ascontiguousarray(table)) for table in (bounds, documents))
    target, pieces = length, 0
    yield Plan(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, bool))
    for block in range(0, len(documents) - 1, BLOCK):
        ends, rows = [], []
        for document in range(block, min(block + BLOCK, len(documents) - 1)):
            begin, stop = documents[document], documents[document + 1]
            while begin < stop:
                end = begin + 1
                while end < stop and bounds[end] - bounds[begin] < target:
                    end += 1
                rows += _split_row(bounds, begin, end, length, target, draw)
                ends.append(pieces + len(rows))
                target = draw.randint(LEAST, length) if draw.random() < SHORT else length
                begin = end
        pieces += len(rows)
        starts, sizes, second = zip(*rows, strict=True) if rows else ((), (), ())
        types = np.int64, np.int64, np.int32, bool
        yield Plan(*map(np.array, (ends, starts, sizes, second), types))


def _split_row(bounds, begin: int, end: int, length: int, target: int, draw) -> list[tuple[int, int, bool]]:
    """Pieces of the row of sentences begin .. end - 1: start, size, whether of the second segment."""
    # An infinite half never ends the first segment.
    half = math.inf if draw.random() < WHOLE else (target - FRAME) // 2
    segments, sizes = ([], []), [0, 0]
    for sentence in range(begin, end):
        size = bounds[sentence + 1] - bounds[sentence]
        fits = not sizes[0] or sizes[0] + size < half
        # A number is drawn only for the sentence that would pass the half, as in the release.
        which = int(not (fits or (not sizes[1] and sizes[0] < half and draw.random() < 0.5)))
        segments[which].append((bounds[sentence], size))
        sizes[which] += size
    first = _cut(segments[0], length - 2)
    second = _cut(segments[1], max(0, length - FRAME - sum(size for _, size in first)))
    return [(*piece, False) for piece in first] + [(*piece, True) for piece in second]


def _cut(sentences: Sequence[tuple[int, int]], room: int) -> list[tuple[int, int]]:
    """The first `room` tokens of sentences; sentences that are adjacent in the text become one piece."""
    pieces = []
    for start, size in sentences:
        size = min(size, room)
        room -= size
        if size and pieces and sum(pieces[-1]) == start:
            pieces[-1] = pieces[-1][0], pieces[-1][1] + size
        elif size:
            pieces.append((start, size))
    return pieces


class Halves:
    """Rows of classifier, segment, separator, and mostly another segment and separator."""

    def __init__(self, stream: Stream, length: int, special: Mapping[str, int], cache: IndexCache):
        def build() -> Iterator[Plan]:
            to_stream = stream_places(stream)
            for part in split(*sentence_tables(stream), length):
                yield part._replace(starts=to_stream(part.starts))

        name, action = f"halves-{stream.identity}-{length}", f"splitting sentences for rows of {length}"
        self.plan = cache.load(Plan, name, build, action)
        self.stream, self.length, self.special = stream, length, special

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> Raw:
        ids, types = np.zeros((2, len(rows), self.length + 1), np.int32)
        inside = np.zeros(ids.shape, bool)
        for out, kinds, used, row in zip(ids, types, inside, rows.tolist(), strict=True):
            begin, end = self.plan.first[row : row + 2].tolist()
            out[0], place, second = self.special["classifier"], 1, False
            for piece in range(begin, end):
                # The first piece of the second segment comes behind the first segment's separator.
                if self.plan.second[piece] and not second:
                    out[place], place, second = self.special["separator"], place + 1, True
                size = int(self.plan.sizes[piece])
                self.stream.copy(int(self.plan.starts[piece]), out[place : place + size])
                kinds[place : place + size + 1] = second  # a segment's separator has its type
                place += size
            out[place], used[: place + 1] = self.special["separator"], True
        return Raw.one_segment(ids, inside[:, :-1], types=types[:, :-1])
