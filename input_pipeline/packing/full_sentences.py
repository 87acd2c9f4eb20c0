"""Whole sentences in a row, over the ends of documents: FULL-SENTENCES (Liu et al. 2019, section 4.2).

Which sentences share a row is planned once for a stream and a row length, and kept on disk.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import LENGTH, DataError
from input_pipeline.packing import index_cache
from input_pipeline.packing.raw import Raw
from input_pipeline.token_store.stream import Stream

BLOCK = 1 << 14  # documents whose sentences are held in memory at a time
FRAME = 2  # special tokens of a row: one before the text and one after it
SPECIAL = ("classifier", "separator")  # which those are, and what stands between documents


class Plan(NamedTuple):
    """Row i is ids starts[i] .. starts[i] + lengths[i] - 1 of the stream, with the end tokens between its documents."""

    starts: np.ndarray  # int64 [rows]
    lengths: np.ndarray  # int32 [rows]

    __reduce__ = index_cache.by_name


def plan(stream: Stream, length: int, folder: Path, report: Callable[[str], None], read_all: bool) -> Plan:
    """The stored plan of a stream, made first if it is not there, and again where its files are damaged."""
    return index_cache.kept(
        Plan,
        folder / f"sentences-{stream.identity}-{length}",
        lambda: filled(_sentences(stream), length),
        f"packing the sentences of {index_cache.counted(stream.counts.documents, 'document')} into rows of {length}",
        report,
        read_all,
    )


def _sentences(stream: Stream) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What `filled` takes, of a block of documents at a time."""
    for begin in range(0, stream.counts.documents, BLOCK):
        starts, ends = [], []
        for document in range(begin, min(begin + BLOCK, stream.counts.documents)):
            bounds = stream.document(document)[0] + np.concatenate([[0], stream.sentences(document)])
            starts.append(bounds[:-1])
            ends.append(bounds[1:])
        yield np.concatenate(starts), np.concatenate(ends)


def filled(sentences: Iterator[tuple[np.ndarray, np.ndarray]], length: int) -> Iterator[Plan]:
    """Rows of `length` filled with whole sentences, in order: a plan, in stretches.

    sentences: where they begin and end in the stream (int64 [n] each), some at a time. One that is longer than a row
    is cut into pieces that fill one each, but for the last. Errors: DataError where there is no room for text.
    """
    room = length - FRAME
    if room < 1:
        raise DataError(
            f"data.layout = sentences has {FRAME} special tokens in each row, and the row's length is {length}; set "
            f"{LENGTH} to at least {FRAME + 1}"
        )
    yield Plan(np.zeros(0, np.int64), np.zeros(0, np.int32))
    starts = ends = np.zeros(0, np.int64)  # of those that are in no row yet
    for more in sentences:
        begins, stops = _pieces(*more, room)
        starts, ends = np.concatenate([starts, begins]), np.concatenate([ends, stops])
        first = []
        place = 0
        while place < len(starts):
            beyond = int(np.searchsorted(ends, starts[place] + room, "right"))
            if beyond == len(starts):  # what comes next may fit too
                break
            first.append(place)
            place = beyond
        yield _rows(starts, ends, np.array([*first, place]))
        starts, ends = starts[place:], ends[place:]
    if len(starts):
        yield _rows(starts, ends, np.array([0, len(starts)]))


def _pieces(starts: np.ndarray, ends: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Sentences without those that have no token, and with pieces in the place of those longer than `room`."""
    count = -(-(ends - starts) // room)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    begins = np.repeat(starts, count) + within * room
    return begins, np.minimum(begins + room, np.repeat(ends, count))


def _rows(starts: np.ndarray, ends: np.ndarray, bounds: np.ndarray) -> Plan:
    """A row of each stretch of sentences between two of the `bounds`."""
    begins = starts[bounds[:-1]]
    return Plan(begins, (ends[bounds[1:] - 1] - begins).astype(np.int32))


class Sentences:
    """Rows under a plan, between a classifier and a separator, which also stands where a document ends within a row.

    All of a row is one segment: documents that meet in it see each other.
    """

    def __init__(self, stream: Stream, plan: Plan, length: int, end: int, classifier: int, separator: int):
        self.stream, self.plan, self.length = stream, plan, length
        self.end, self.classifier, self.separator = end, classifier, separator

    def __len__(self) -> int:
        return len(self.plan.starts)

    def read(self, rows: np.ndarray) -> Raw:
        """Rows `rows` (int64 [n]) of the plan."""
        ids = np.zeros((len(rows), self.length + 1), np.int32)
        sizes = self.plan.lengths[rows]
        for out, start, size in zip(ids, self.plan.starts[rows].tolist(), sizes.tolist(), strict=True):
            self.stream.copy(start, out[1 : 1 + size])
        places = np.arange(self.length, dtype=np.int32)
        there = places <= 1 + sizes[:, None]
        ids[:, :-1][there & (ids[:, :-1] == self.end)] = self.separator
        ids[:, 0], ids[np.arange(len(rows)), 1 + sizes] = self.classifier, self.separator
        return Raw(ids[:, :-1], ids[:, 1:], there.astype(np.int32), places * there, there)
