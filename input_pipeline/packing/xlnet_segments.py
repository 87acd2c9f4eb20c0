"""Rows of a contiguous stream that end with two segments (Yang et al. 2019, appendix A): text, A, SEP, B, SEP, CLS.

A follows the text in the stream; B follows A, or in half of the rows begins at a random place. The next row of a lane
begins where this row's text ends. Lanes may read the stream backwards.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from input_pipeline.packing.index_cache import IndexCache, reduce_by_path
from input_pipeline.token_store.stream import Stream

DRAWS = 3  # random numbers per row: whether B follows A, where A ends, where B is
FRAME = 3  # special tokens of a row
BLOCK = 1 << 16  # documents whose sentences are in memory at a time


class RawSegments(NamedTuple):
    """n raw rows of R ids: `reuse` ids of text, then the two segments with their special tokens."""

    ids: np.ndarray  # int32 [n, R]
    types: np.ndarray  # int32 [n, R]: 0 in the text, A and its SEP, 1 in B and its SEP, 2 at CLS
    functional: np.ndarray  # bool [n, R]: SEP and CLS
    backward: np.ndarray  # bool [n]: the stream is read backwards


class Plan(NamedTuple):
    """Ends of sentences in a stream: the place behind each, in order."""

    ends: np.ndarray  # int64 [sentences]

    __reduce__ = reduce_by_path


def plan_sentence_ends(stream: Stream, cache: IndexCache) -> Plan:
    """The plan of a stream."""

    def build() -> Iterator[Plan]:
        documents = range(stream.counts.documents)
        for begin in range(0, max(len(documents), 1), BLOCK):
            block = documents[begin : begin + BLOCK]
            ends = [stream.document(number)[0] + stream.sentences(number) for number in block]
            yield Plan(np.concatenate([np.zeros(0, np.int64), *ends]))

    return cache.load(Plan, f"sentences-{stream.identity}", build, "listing sentence ends")


class Segments:
    """Rows of R ids, `reuse` of them text; segments are whole sentences with a plan, else cut anywhere."""

    def __init__(self, stream: Stream, plan: Plan | None, length: int, reuse: int, framing: tuple[int, int]):
        self.stream, self.plan, self.length, self.reuse = stream, plan, length, reuse
        self.separator, self.classifier = framing
        self.room = length - reuse - FRAME  # ids of A and B together

    def read(self, starts: np.ndarray, backward: np.ndarray, drawn: np.ndarray) -> RawSegments:
        """The rows that begin at places `starts` (int64 [n]) of the stream, or of its reverse (`backward`, bool [n]).

        drawn: uniform numbers in [0, 1), float64 [n, DRAWS].
        """
        follows, cut, elsewhere = drawn.T
        rows, total = len(starts), self.stream.tokens
        ids = np.empty((rows, self.length), np.int32)
        types, functional = np.zeros(ids.shape, np.int32), np.zeros(ids.shape, bool)
        for row, (start, back) in enumerate(zip(starts.tolist(), backward.tolist(), strict=True)):
            a = start + self.reuse
            # A sentence longer than the room has no place to end A: then A is all of it, and B is random.
            cuts, end = self._cuts(a % total, back)
            is_random = not len(cuts) or follows[row] < 0.5
            a_length = int(cuts[int(cut[row] * len(cuts))]) if len(cuts) else end
            if is_random:
                b_length = max(1, self.room - a_length)
                b, b_length = self._widen(int(elsewhere[row] * max(1, total - b_length)), b_length, back)
            else:
                b, b_length = a + a_length, end - a_length
            # Whole sentences may exceed the room, so the longer segment loses its last tokens.
            a_length, b_length = truncate(a_length, b_length, self.room)
            middle = self.reuse + a_length
            # Text and A are contiguous in the stream, so one copy reads both.
            self._copy(start, back, ids[row, :middle])
            self._copy(b, back, ids[row, middle + 1 : middle + 1 + b_length])
            ids[row, [middle, -2]] = self.separator
            types[row, middle + 1 : -1] = 1
            functional[row, [middle, -2]] = True
        ids[:, -1], types[:, -1], functional[:, -1] = self.classifier, 2, True
        return RawSegments(ids, types, functional, backward)

    def _copy(self, start: int, back: bool, out: np.ndarray) -> None:
        # Place p of the reverse is place N - 1 - p of the stream, so a stretch is read mirrored.
        if back:
            start, out = self.stream.tokens - start - len(out), out[::-1]
        self.stream.copy(start, out)

    def _cuts(self, first: int, back: bool) -> tuple[np.ndarray, int]:
        """(lengths below `room` at which A may end, length at which the sentence that reaches `room` ends)."""
        if self.plan is None:
            return np.arange(1, self.room), self.room
        total, ends, last = self.stream.tokens, self.plan.ends, first + self.room
        if back:
            # In the reverse a sentence ends where it begins in the stream: at the end of the one before.
            low = max(int(np.searchsorted(ends, total - last, "right")) - 1, 0)
            lengths = (total - ends[low : int(np.searchsorted(ends, total - first, "left"))])[::-1] - first
        else:
            low = int(np.searchsorted(ends, first, "right"))
            lengths = ends[low : int(np.searchsorted(ends, last, "left")) + 1] - first
        lengths = np.asarray(lengths)
        return lengths[lengths < self.room], max(self.room, int(lengths[-1]) if len(lengths) else self.room)

    def _widen(self, start: int, size: int, back: bool) -> tuple[int, int]:
        """A stretch widened to whole sentences, within the stream."""
        if self.plan is None:
            return start, size
        total, ends = self.stream.tokens, self.plan.ends
        first, last = (total - start - size, total - start) if back else (start, start + size)
        before, behind = int(np.searchsorted(ends, first, "right")) - 1, int(np.searchsorted(ends, last, "left"))
        first = int(ends[before]) if before >= 0 else 0
        last = int(ends[behind]) if behind < len(ends) else total
        return (total - last if back else first), last - first


def truncate(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two segments cut to `room` in all, as the release does: token by token from the longer one.

    The second loses a token if both are as long.
    """
    if second <= room // 2:
        return room - second, second
    if first <= room - room // 2:
        return first, room - first
    return room - room // 2, room // 2
