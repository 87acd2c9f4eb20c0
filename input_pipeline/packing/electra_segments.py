"""Rows of one stretch of a document's sentences, mostly in two segments (Clark et al. 2020, in the released code).

Sentences are taken in order until they have as many tokens as a row, in one of twenty rows a random number from 5, or
their document ends. The first of them make up the first segment until it would have half of the tokens; the one that
would pass that goes into it or begins the second, each with equal chance. A later one that still fits in the first
joins it, so that a segment may leave out a sentence. One row of ten is one segment. What is beyond a row is left out.
Which sentences make which row is planned once for a stream and a row length, by that code's draws, and kept on disk.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import LENGTH, DataError
from input_pipeline.packing import index_cache
from input_pipeline.packing.nsp_pairs import BLOCK, FRAME, LEAST, SEED, Framed, RawPairs, tables, with_ends
from input_pipeline.token_store.stream import Stream

SPECIAL = ("classifier", "separator")  # which stands before the text, and behind each segment
WHOLE = 0.1  # share of the rows that are one segment
SHORT = 0.05  # share of the rows that are of a random length


class Plan(NamedTuple):
    """Row i is the pieces first[i] .. first[i + 1] - 1, those of the second segment behind the others."""

    first: np.ndarray  # int64 [rows + 1]
    starts: np.ndarray  # int64 [pieces], where each begins in the stream
    sizes: np.ndarray  # int32 [pieces], its tokens
    second: np.ndarray  # bool [pieces], whether it is of the second segment

    __reduce__ = index_cache.by_name


def plan(stream: Stream, length: int, folder: Path, report: Callable[[str], None], read_all: bool) -> Plan:
    """The stored plan of a stream, made first if it is not there, and again where its files are damaged."""
    return index_cache.kept(
        Plan,
        folder / f"halves-{stream.identity}-{length}",
        lambda: _planned(stream, length),
        f"splitting the sentences of {index_cache.counted(stream.counts.documents, 'document')} for rows of {length}",
        report,
        read_all,
    )


def _planned(stream: Stream, length: int) -> Iterator[Plan]:
    """The plan of a stream, in stretches: `split` in ids of the stream, which count end tokens too."""
    placed = with_ends(stream)
    for part in split(*tables(stream), length):
        yield part._replace(starts=placed(part.starts))


def split(bounds: np.ndarray, documents: np.ndarray, length: int, seed: int = SEED) -> Iterator[Plan]:
    """A plan for rows of `length`, in stretches; `bounds` and `documents` as `pairs.paired` takes them.

    Errors: DataError where a row has no room for two segments of a token.
    """
    if length < LEAST:
        raise DataError(
            f"data.layout = halves has {FRAME} special tokens in each row, and the row's length is {length}; set "
            f"{LENGTH} to at least {LEAST}"
        )
    draw = random.Random(seed)
    bounds, documents = (memoryview(np.ascontiguousarray(array)) for array in (bounds, documents))
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
                rows += _row(bounds, begin, end, length, target, draw)
                ends.append(pieces + len(rows))
                target = draw.randint(LEAST, length) if draw.random() < SHORT else length
                begin = end
        pieces += len(rows)
        starts, sizes, second = zip(*rows, strict=True) if rows else ((), (), ())
        yield Plan(
            np.array(ends, np.int64), np.array(starts, np.int64), np.array(sizes, np.int32), np.array(second, bool)
        )


def _row(bounds, begin: int, end: int, length: int, target: int, draw: random.Random) -> list[tuple[int, int, bool]]:
    """The pieces of a row of the sentences begin .. end - 1: start, size, whether of the second segment."""
    half = math.inf if draw.random() < WHOLE else (target - FRAME) // 2
    segments, sizes = ([], []), [0, 0]
    for sentence in range(begin, end):
        size = bounds[sentence + 1] - bounds[sentence]
        fits = not sizes[0] or sizes[0] + size < half
        which = int(not (fits or (not sizes[1] and sizes[0] < half and draw.random() < 0.5)))
        segments[which].append((bounds[sentence], size))
        sizes[which] += size
    first = _cut(segments[0], length - 2)
    second = _cut(segments[1], max(0, length - FRAME - sum(size for _, size in first)))
    return [(*piece, False) for piece in first] + [(*piece, True) for piece in second]


def _cut(sentences: Sequence[tuple[int, int]], room: int) -> list[tuple[int, int]]:
    """The first `room` tokens of sentences, in stretches: those that follow one another in the text are one."""
    pieces = []
    for start, size in sentences:
        size = min(size, room)
        room -= size
        if size and pieces and sum(pieces[-1]) == start:
            pieces[-1] = pieces[-1][0], pieces[-1][1] + size
        elif size:
            pieces.append((start, size))
    return pieces


class Halves(Framed):
    """Rows under a plan: a classifier, a segment and a separator, and mostly another segment and a separator."""

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> RawPairs:
        """Rows `rows` (int64 [n]) of the plan. None of them is random."""
        ids, types = np.zeros((2, len(rows), self.length + 1), np.int32)
        there = np.zeros(ids.shape, bool)
        for out, kinds, inside, row in zip(ids, types, there, rows.tolist(), strict=True):
            begin, end = self.plan.first[row : row + 2].tolist()
            out[0], place, second = self.classifier, 1, False
            for piece in range(begin, end):
                if self.plan.second[piece] and not second:
                    out[place], place, second = self.separator, place + 1, True
                size = int(self.plan.sizes[piece])
                self.stream.copy(int(self.plan.starts[piece]), out[place : place + size])
                kinds[place : place + size + 1] = second  # what ends a segment is of it
                place += size
            out[place], inside[: place + 1] = self.separator, True
        there, places = there[:, :-1], np.arange(self.length, dtype=np.int32)
        return RawPairs(
            ids=ids[:, :-1],
            following=ids[:, 1:],
            segments=there.astype(np.int32),
            positions=places * there,
            scored=there,
            types=types[:, :-1],
            is_random=np.zeros(len(rows), bool),
        )
