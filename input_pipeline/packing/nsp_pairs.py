"""Pairs of segments, of which the second follows the first in the text or is a random one (Devlin et al. 2018, A.2).

Or, where pairs are swapped, precedes it (Lan et al. 2019, section 3.1). Which sentences make which pair is planned once
for a stream and a row length, by the sequential algorithm of the papers' released code, and kept on disk.
"""

import itertools
import random
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.packing import index_cache
from input_pipeline.token_store.stream import Stream

SEED = 12345  # of all plans: a run's own seed orders the pairs
TRIES = 10  # at most, to find another document than the first segment's
BLOCK = 1 << 14  # documents whose pairs are held in memory at a time
FRAME = 3  # special tokens of a row: one before the first segment, one after each
LEAST = FRAME + 2  # tokens of a row: each segment has one


class RawPairs(NamedTuple):
    """n raw rows of a classifier, a segment, a separator, another segment and a separator. Zeros behind."""

    ids: np.ndarray  # int32 [n, R]
    following: np.ndarray  # int32 [n, R], the id after each in the row
    segments: np.ndarray  # int32 [n, R], 1 up to the last separator: the two see each other
    positions: np.ndarray  # int32 [n, R], its place in the row
    scored: np.ndarray  # bool [n, R]
    types: np.ndarray  # int32 [n, R], 1 in the second segment and its separator
    is_random: np.ndarray  # bool [n], whether the second does not follow the first: it is random, or precedes it


class Plan(NamedTuple):
    """Pair i is ids first[i] .. first[i] + first_lengths[i] - 1 of the text, and so many from second[i] on."""

    first: np.ndarray  # int64 [pairs]
    first_lengths: np.ndarray  # int32 [pairs]
    second: np.ndarray  # int64 [pairs]
    second_lengths: np.ndarray  # int32 [pairs]
    is_random: np.ndarray  # bool [pairs]

    __reduce__ = index_cache.by_name


def plan(
    stream: Stream,
    length: int,
    short: float,
    passes: int,
    swapped: bool,
    folder: Path,
    report: Callable[[str], None],
    read_all: bool,
) -> Plan:
    """The stored plan of a stream, made first if it is not there, and again where its files are damaged."""
    if stream.counts.documents == 1 and not swapped:
        report(
            "all sentences are of one document, so that those that do not follow are from it too; where a file holds "
            "several, ?document=blank_line tells them apart"
        )
    return index_cache.kept(
        Plan,
        folder / f"pairs-{stream.identity}-{length}-{short:g}-{passes}{'-swapped' * swapped}",
        lambda: _planned(stream, length, short, passes, swapped),
        f"pairing the sentences of {index_cache.counted(stream.counts.documents, 'document')} for rows of {length}",
        report,
        read_all,
    )


def check(streams: Iterable[Stream], length: int) -> None:
    """Raises DataError where in rows of `length` no pair of any of the streams can have a second segment that follows.

    One follows from a sentence that another of its document comes after, and that leaves that one room in a row.
    """
    if not any((sizes[:-1] < length - FRAME).any() for stream in streams for sizes in _sizes(stream)):
        raise DataError(
            "objective.next_sentence = True asks whether the second segment of a pair follows the first, and no "
            f"document of data.train has two sentences the first of which is shorter than rows of data.length = "
            f"{length}, so that every pair would be random; give text with several lines to a document, such as by "
            "?document=blank_line, raise data.length, or set it to False and data.layout to sentences"
        )


def _sizes(stream: Stream) -> Iterator[np.ndarray]:
    """Tokens of each sentence, of one document after another; sentences and documents without any are left out."""
    for document in range(stream.counts.documents):
        sizes = np.diff(stream.sentences(document), prepend=0)
        if sizes.any():
            yield sizes[sizes > 0]


def tables(stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    """What `paired` takes, in ids without end tokens; sentences and documents without any are left out."""
    sizes, none = list(_sizes(stream)), np.zeros(1, np.int64)
    return np.cumsum(np.concatenate([none, *sizes])), np.cumsum([0, *map(len, sizes)])


def with_ends(stream: Stream) -> Callable[[np.ndarray], np.ndarray]:
    """What makes of places (int64 [n]) in ids without end tokens those in ids of the stream, which count them too."""
    ends = stream.tokens > stream.bare_tokens
    sizes = stream.documents() - ends
    begins = np.cumsum(sizes) - sizes  # of each document, without end tokens
    return lambda places: places + ends * np.searchsorted(begins, places, "right")


def _planned(stream: Stream, length: int, short: float, passes: int, swapped: bool) -> Iterator[Plan]:
    """The plan of a stream, in stretches: `paired` in ids of the stream, which count end tokens too."""
    placed = with_ends(stream)
    for part in paired(*tables(stream), length, short, passes, swapped):
        yield part._replace(first=placed(part.first), second=placed(part.second))


def paired(
    bounds: np.ndarray,
    documents: np.ndarray,
    length: int,
    short: float,
    passes: int,
    swapped: bool = False,
    seed: int = SEED,
) -> Iterator[Plan]:
    """Pairs of sentences for rows of `length`, of so many passes over all documents: a plan, in stretches.

    bounds: where each sentence begins and the last one ends, int64 [S + 1], each sentence of a token at least.
    documents: number of sentences before each document, and of all, int64 [D + 1], each document of one at least.
    short: the probability with which a document's pairs are made for a random length, from 2 tokens on. swapped: what
    does not follow precedes, but where a sentence stands alone. Errors: DataError where that is all there are.
    """
    if swapped and (np.diff(documents) < 2).all():
        raise DataError(
            "objective.swapped_pairs = True asks in which order two sentences stand, and no document has two; give "
            "text with several lines to a document, such as by ?document=blank_line, or train a run with it False"
        )
    draw, (bounds, documents) = random.Random(seed).random, map(memoryview, (bounds, documents))
    count = len(documents) - 1
    for _, begin in itertools.product(range(passes), range(0, max(count, 1), BLOCK)):
        columns = array("q"), array("i"), array("q"), array("i"), array("b")
        for document in range(begin, min(begin + BLOCK, count)):
            for row in _of_document(document, bounds, documents, length - FRAME, short, swapped, draw):
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
        yield Plan(*map(np.array, columns))._replace(is_random=np.array(columns[-1], bool))


def _of_document(document: int, bounds, documents, most: int, short: float, swapped: bool, draw) -> Iterator[tuple]:
    """The pairs of one document, as columns of the plan; what is drawn, and in which order, is the released code's."""

    def below(number: int) -> int:
        return int(draw() * number)

    here, stop = documents[document], documents[document + 1]
    target = 2 + below(most - 1) if draw() < short else most
    while here < stop:
        end = min(bisect_left(bounds, bounds[here] + target, here + 1), stop)  # sentences here .. end - 1 suffice
        middle = here + (1 + below(end - here - 1) if end - here > 1 else 1)
        is_random = end - here == 1 or draw() < 0.5
        first, first_end, begin, after = here, middle, middle, end
        if is_random and swapped and end - here > 1:
            first, first_end, begin, end = middle, end, here, middle
        elif is_random:  # the sentences from the middle on are left for the next pair
            for _ in range(TRIES):
                other = below(len(documents) - 1)
                if other != document:
                    break
            begin = documents[other] + below(documents[other + 1] - documents[other])
            wanted = bounds[begin] + target - (bounds[middle] - bounds[here])
            end, after = min(bisect_left(bounds, wanted, begin + 1), documents[other + 1]), middle
        yield *_cut(bounds[first], bounds[first_end], bounds[begin], bounds[end], most, draw), is_random
        here = after


def _cut(first: int, first_end: int, second: int, second_end: int, most: int, draw) -> tuple[int, int, int, int]:
    """(first, its length, second, its length) with tokens dropped from the longer one until `most` are left in all.

    Each from its front or its back with equal chance; from the second where both are as long.
    """
    excess = max(0, first_end - first + second_end - second - most)
    fronts = [draw() < 0.5 for _ in range(excess)]
    longer = first_end - first - (second_end - second)
    alone, both = fronts[: abs(longer)], fronts[abs(longer) :]  # dropped while one is longer, and in turn
    from_first, from_second = (alone if longer > 0 else []) + both[1::2], (alone if longer <= 0 else []) + both[0::2]
    first, first_end = first + sum(from_first), first_end - len(from_first) + sum(from_first)
    second, second_end = second + sum(from_second), second_end - len(from_second) + sum(from_second)
    return first, first_end - first, second, second_end - second


class Framed:
    """Rows under a plan, whose segments stand between a classifier and separators."""

    def __init__(self, stream: Stream, plan: NamedTuple, length: int, classifier: int, separator: int):
        self.stream, self.plan, self.length = stream, plan, length
        self.classifier, self.separator = classifier, separator


class Pairs(Framed):
    """Rows of two segments under a plan, between a classifier and separators."""

    def __len__(self) -> int:
        return len(self.plan.first)

    def read(self, rows: np.ndarray) -> RawPairs:
        """Rows `rows` (int64 [n]) of the plan."""
        ids = np.zeros((len(rows), self.length + 1), np.int32)
        columns = [field[rows].tolist() for field in self.plan[:4]]
        for out, first, size, second, other in zip(ids, *columns, strict=True):
            self.stream.copy(first, out[1 : 1 + size])
            self.stream.copy(second, out[2 + size : 2 + size + other])
        places, rank = np.arange(self.length, dtype=np.int32), np.arange(len(rows))
        middle = 1 + self.plan.first_lengths[rows]  # place of the first separator
        last = middle + 1 + self.plan.second_lengths[rows]
        ids[:, 0], ids[rank, middle], ids[rank, last] = self.classifier, self.separator, self.separator
        there = places <= last[:, None]
        return RawPairs(
            ids=ids[:, :-1],
            following=ids[:, 1:],
            segments=there.astype(np.int32),
            positions=places * there,
            scored=there,
            types=((places > middle[:, None]) & there).astype(np.int32),
            is_random=self.plan.is_random[rows],
        )
