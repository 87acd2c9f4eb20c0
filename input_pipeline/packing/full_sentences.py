"""Rows of whole sentences across document ends (layout sentences): FULL-SENTENCES of Liu et al. 2019, section 4.2."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from input_pipeline.packing.concat import Raw
from input_pipeline.packing.documents import cut_pieces
from input_pipeline.packing.index_cache import IndexCache, reduce_by_path
from input_pipeline.token_store.stream import Stream

BLOCK = 1 << 14  # documents whose sentences are in memory at a time
FRAME = 2  # special tokens of a row: classifier in front, separator behind


class Plan(NamedTuple):
    """Row i is ids starts[i] .. starts[i] + lengths[i] - 1 of the stream, with the end tokens inside."""

    starts: np.ndarray  # int64 [rows]
    lengths: np.ndarray  # int32 [rows]

    __reduce__ = reduce_by_path


def _sentences(stream: Stream) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Starts and ends of sentences in the stream, a block of documents at a time."""
    for begin in range(0, stream.counts.documents, BLOCK):
        starts, ends = [], []
        for document in range(begin, min(begin + BLOCK, stream.counts.documents)):
            bounds = stream.document(document)[0] + np.concatenate([[0], stream.sentences(document)])
            starts.append(bounds[:-1])
            ends.append(bounds[1:])
        yield np.concatenate(starts), np.concatenate(ends)


def pack(sentences: Iterator[tuple[np.ndarray, np.ndarray]], length: int) -> Iterator[Plan]:
    """Fills rows of `length` with whole sentences, in order; gives the plan in parts.

    sentences: starts and ends in the stream (int64 [n] each), some at a time. A sentence longer than a row is cut into
    pieces that fill one row each, but for the last.
    """
    room = length - FRAME
    yield Plan(np.zeros(0, np.int64), np.zeros(0, np.int32))
    starts = ends = np.zeros(0, np.int64)  # sentences that are in no row yet
    for block in sentences:
        begins, stops = cut_pieces(*block, room)
        starts, ends = np.concatenate([starts, begins]), np.concatenate([ends, stops])
        first = []
        place = 0
        while place < len(starts):
            # A row spans the stream from its first sentence on, so end tokens between documents count as its tokens.
            beyond = int(np.searchsorted(ends, starts[place] + room, "right"))
            if beyond == len(starts):  # the next block's first sentence may still fit
                break
            first.append(place)
            place = beyond
        yield _rows(starts, ends, np.array([*first, place]))
        starts, ends = starts[place:], ends[place:]
    if len(starts):
        yield _rows(starts, ends, np.array([0, len(starts)]))


def _rows(starts: np.ndarray, ends: np.ndarray, bounds: np.ndarray) -> Plan:
    """One row for the sentences between each two of the `bounds`."""
    begins = starts[bounds[:-1]]
    return Plan(begins, (ends[bounds[1:] - 1] - begins).astype(np.int32))


class Sentences:
    """Rows of one segment between classifier and separator; a separator also replaces end tokens within a row."""

    def __init__(self, stream: Stream, length: int, special: Mapping[str, int], cache: IndexCache):
        name, action = f"sentences-{stream.identity}-{length}", f"packing sentences into rows of {length}"
        self.plan = cache.load(Plan, name, lambda: pack(_sentences(stream), length), action)
        self.stream, self.length, self.special = stream, length, special

    def __len__(self) -> int:
        return len(self.plan.starts)

    def read(self, rows: np.ndarray) -> Raw:
        ids = np.zeros((len(rows), self.length + 1), np.int32)
        sizes = self.plan.lengths[rows]
        for out, start, size in zip(ids, self.plan.starts[rows].tolist(), sizes.tolist(), strict=True):
            self.stream.copy(start, out[1 : 1 + size])
        # End tokens between documents are in the copied stretch already; only their id changes.
        inside = np.arange(self.length) <= 1 + sizes[:, None]
        ids[:, :-1][inside & (ids[:, :-1] == self.special["end"])] = self.special["separator"]
        ids[:, 0] = self.special["classifier"]
        ids[np.arange(len(rows)), 1 + sizes] = self.special["separator"]
        return Raw.one_segment(ids, inside)
