"""Rows of a contiguous stream that end with two segments (Yang et al. 2019, appendix A): text, A, SEP, B, SEP, CLS.

The text and A follow each other in the stream; B goes on from A, or in half of the rows begins at a random place. The
next row of a lane begins where this row's text ends. Lanes may read the stream backwards.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.packing import index_cache
from input_pipeline.token_store.stream import Stream

DRAWS = 3  # numbers that a row is made by
FRAME = 3  # special tokens of a row
BLOCK = 1 << 16  # documents whose sentences are held in memory at a time


class RawSegments(NamedTuple):
    """n raw rows of R ids, of which `reuse` are text and the others the two segments with what ends them."""

    ids: np.ndarray  # int32 [n, R]
    types: np.ndarray  # int32 [n, R]: 0 in the text, A and its SEP, 1 in B and its SEP, 2 at CLS
    functional: np.ndarray  # bool [n, R]: SEP and CLS
    backward: np.ndarray  # bool [n]: the text is back to front
    is_random: np.ndarray  # bool [n]: B does not follow A


class Plan(NamedTuple):
    """Where sentences end in a stream, in ids: the place of the id after each, in order."""

    ends: np.ndarray  # int64 [sentences]

    __reduce__ = index_cache.by_name


def plan(stream: Stream, folder: Path, report: Callable[[str], None], read_all: bool) -> Plan:
    """The stored plan of a stream, made first if it is not there, and again where its files are damaged."""
    documents = stream.counts.documents
    return index_cache.kept(
        Plan,
        folder / f"sentences-{stream.identity}",
        lambda: _planned(stream),
        f"listing where the sentences of {index_cache.counted(documents, 'document')} end",
        report,
        read_all,
    )


def _planned(stream: Stream) -> Iterator[Plan]:
    documents = range(stream.counts.documents)
    for begin in range(0, max(len(documents), 1), BLOCK):
        block = documents[begin : begin + BLOCK]
        ends = [stream.document(number)[0] + stream.sentences(number) for number in block]
        yield Plan(np.concatenate([np.zeros(0, np.int64), *ends]))


class Segments:
    """Rows of R ids, `reuse` of them text. `plan` None: segments are cut anywhere."""

    def __init__(self, stream: Stream, plan: Plan | None, length: int, reuse: int, framing: tuple[int, int]):
        self.stream, self.plan, self.length, self.reuse = stream, plan, length, reuse
        self.separator, self.classifier = framing
        self.room = length - reuse - FRAME  # ids of A and B together

    def read(self, starts: np.ndarray, backward: np.ndarray, drawn: np.ndarray) -> RawSegments:
        """The rows that begin at ids `starts` (int64 [n]) of the stream, or of it back to front (`backward`, bool [n]).

        drawn: random numbers in [0, 1), float64 [n, DRAWS]: whether B follows A, where A ends, where B is.
        """
        follows, cut, elsewhere = drawn.T
        rows, total = len(starts), self.stream.tokens
        ids = np.empty((rows, self.length), np.int32)
        types, functional = np.zeros(ids.shape, np.int32), np.zeros(ids.shape, bool)
        is_random = np.zeros(rows, bool)
        for row, (start, back) in enumerate(zip(starts.tolist(), backward.tolist(), strict=True)):
            first = start + self.reuse  # of A
            cuts, end = self._cuts(first % total, back)
            is_random[row] = not len(cuts) or follows[row] < 0.5
            first_length = int(cuts[int(cut[row] * len(cuts))]) if len(cuts) else end
            if is_random[row]:
                size = max(1, self.room - first_length)
                second = int(elsewhere[row] * max(1, total - size))
                second, size = self._widened(second, size, back)
            else:
                second, size = first + first_length, end - first_length
            first_length, size = trimmed(first_length, size, self.room)
            middle = self.reuse + first_length
            self._copy(start, back, ids[row, :middle])
            self._copy(second, back, ids[row, middle + 1 : middle + 1 + size])
            ids[row, [middle, -2]] = self.separator
            types[row, middle + 1 : -1] = 1
            functional[row, [middle, -2]] = True
        ids[:, -1], types[:, -1], functional[:, -1] = self.classifier, 2, True
        return RawSegments(ids, types, functional, backward, is_random)

    def _copy(self, start: int, back: bool, out: np.ndarray) -> None:
        if back:
            start, out = self.stream.tokens - start - len(out), out[::-1]
        self.stream.copy(start, out)

    def _cuts(self, first: int, back: bool) -> tuple[np.ndarray, int]:
        """(lengths at which A may end, of less than `room`; the length at which the sentence ends that fills it)."""
        if self.plan is None:
            return np.arange(1, self.room), self.room
        begin, end = self._sentences(first, first + self.room, back)
        ends = self._lengths(begin, end, first, back)
        return ends[ends < self.room], max(self.room, int(ends[-1]) if len(ends) else self.room)

    def _sentences(self, first: int, last: int, back: bool) -> tuple[int, int]:
        """Which of the plan's ends lie behind `first` and up to the first one at `last` or after."""
        total, ends = self.stream.tokens, self.plan.ends
        if back:
            begin = int(np.searchsorted(ends, total - last, "right")) - 1
            return max(begin, 0), int(np.searchsorted(ends, total - first, "left"))
        return int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, last, "left")) + 1

    def _lengths(self, begin: int, end: int, first: int, back: bool) -> np.ndarray:
        """Lengths from `first` to these ends, in order."""
        ends = np.asarray(self.plan.ends[begin:end])
        return (self.stream.tokens - ends)[::-1] - first if back else ends - first

    def _widened(self, start: int, size: int, back: bool) -> tuple[int, int]:
        """A stretch widened to whole sentences, as far as they lie within the stream."""
        if self.plan is None:
            return start, size
        total, ends = self.stream.tokens, self.plan.ends
        first, last = (total - start - size, total - start) if back else (start, start + size)
        before, behind = int(np.searchsorted(ends, first, "right")) - 1, int(np.searchsorted(ends, last, "left"))
        first = int(ends[before]) if before >= 0 else 0
        last = int(ends[behind]) if behind < len(ends) else total
        return (total - last if back else first), last - first


def trimmed(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two segments cut to `room` in all: the longer one loses tokens, the second where both are as long."""
    if second <= room // 2:
        return room - second, second
    if first <= room - room // 2:
        return first, room - first
    return room - room // 2, room // 2
