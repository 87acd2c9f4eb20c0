"""Sentence pairs: the second segment follows the first or is random (Devlin et al. 2018, appendix A.2).

With swapped pairs the second precedes the first instead (Lan et al. 2019, section 3.1). The plan is made by the
sequential algorithm of the released code, with its random draws in the same order.
"""

import itertools
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from input_pipeline.packing.concat import Raw
from input_pipeline.packing.index_cache import IndexCache, reduce_by_path
from input_pipeline.token_store.stream import Stream

SEED = 12345  # of all plans, as in the release; a run's own seed only shuffles the pairs
TRIES = 10  # at most, to find a document other than the first segment's
BLOCK = 1 << 14  # documents whose pairs are in memory at a time
FRAME = 3  # special tokens of a row: classifier, and a separator behind each segment
LEAST = FRAME + 2  # tokens of a row with one token in each segment


class Plan(NamedTuple):
    """A of pair i is ids first[i] .. first[i] + first_lengths[i] - 1 of the stream; B likewise."""

    first: np.ndarray  # int64 [pairs]
    first_lengths: np.ndarray  # int32 [pairs]
    second: np.ndarray  # int64 [pairs]
    second_lengths: np.ndarray  # int32 [pairs]
    is_random: np.ndarray  # bool [pairs]

    __reduce__ = reduce_by_path


def sentence_tables(stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    """`bounds` and `documents` of `make_pairs`; empty sentences and documents are left out."""
    sizes = []
    for document in range(stream.counts.documents):
        tokens = np.diff(stream.sentences(document), prepend=0)
        if tokens.any():
            sizes.append(tokens[tokens > 0])
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes])), np.cumsum([0, *map(len, sizes)])


def stream_places(stream: Stream) -> Callable[[np.ndarray], np.ndarray]:
    """Maps places in text without end tokens (int64 [n]) to places in the stream."""
    has_ends = stream.tokens > stream.bare_tokens
    sizes = stream.document_sizes() - has_ends
    begins = np.cumsum(sizes) - sizes  # of each document, without end tokens
    # An id of document d has d + 1 end tokens before it.
    return lambda places: places + has_ends * np.searchsorted(begins, places, "right")


def make_pairs(
    bounds: np.ndarray,
    documents: np.ndarray,
    length: int,
    short: float,
    passes: int,
    swapped: bool = False,
    seed: int = SEED,
) -> Iterator[Plan]:
    """Pairs for rows of `length`, from `passes` passes over all documents; gives the plan in parts.

    bounds: start of each sentence and the end of the last, int64 [S + 1], no sentence empty.
    documents: sentences before each document, and all, int64 [D + 1], no document empty.
    short: probability that a document's pairs have a random target length, of 2 tokens or more.
    swapped: B precedes A instead of being random, unless a sentence is alone.
    """
    # memoryviews index faster than arrays from Python loops.
    draw, (bounds, documents) = random.Random(seed).random, map(memoryview, (bounds, documents))
    count = len(documents) - 1
    for _, begin in itertools.product(range(passes), range(0, max(count, 1), BLOCK)):
        block = range(begin, min(begin + BLOCK, count))
        pairs = [_pair_document(each, bounds, documents, length - FRAME, short, swapped, draw) for each in block]
        columns = zip(*itertools.chain.from_iterable(pairs), strict=True) if count else [()] * 5
        yield Plan(*map(np.array, columns, (np.int64, np.int32, np.int64, np.int32, bool)))


def _pair_document(document: int, bounds, documents, most: int, short: float, swapped: bool, draw) -> Iterator[tuple]:
    """Pairs of one document of at most `most` tokens, as columns of the plan."""

    def below(number: int) -> int:
        return int(draw() * number)

    here, stop = documents[document], documents[document + 1]
    # Short targets are drawn once per document, as in the release.
    target = 2 + below(most - 1) if draw() < short else most
    while here < stop:
        end = min(bisect_left(bounds, bounds[here] + target, here + 1), stop)  # sentences here .. end - 1 fill a row
        middle = here + (1 + below(end - here - 1) if end - here > 1 else 1)
        is_random = end - here == 1 or draw() < 0.5
        first, first_end, begin, after = here, middle, middle, end
        if is_random and swapped and end - here > 1:
            first, first_end, begin, end = middle, end, here, middle
        elif is_random:
            # With one document only, all tries fail, and the random segment is from it too.
            for _ in range(TRIES):
                other = below(len(documents) - 1)
                if other != document:
                    break
            begin = documents[other] + below(documents[other + 1] - documents[other])
            wanted = bounds[begin] + target - (bounds[middle] - bounds[here])
            # Sentences from the middle on are not used: the next pair begins with them.
            end, after = min(bisect_left(bounds, wanted, begin + 1), documents[other + 1]), middle
        yield *_truncate(bounds[first], bounds[first_end], bounds[begin], bounds[end], most, draw), is_random
        here = after


def _truncate(first: int, first_end: int, second: int, second_end: int, most: int, draw) -> tuple[int, int, int, int]:
    """(A, its length, B, its length), with tokens dropped from the longer one until `most` are left.

    Each token is dropped from the front or the back with equal chance; from B if both are as long.
    """
    excess = max(0, first_end - first + second_end - second - most)
    fronts = [draw() < 0.5 for _ in range(excess)]
    longer = first_end - first - (second_end - second)
    # Closed form of the release's loop: first the longer one alone loses tokens, then both take turns, B first.
    alone, both = fronts[: abs(longer)], fronts[abs(longer) :]
    from_first, from_second = (alone if longer > 0 else []) + both[1::2], (alone if longer <= 0 else []) + both[0::2]
    first, first_end = first + sum(from_first), first_end - len(from_first) + sum(from_first)
    second, second_end = second + sum(from_second), second_end - len(from_second) + sum(from_second)
    return first, first_end - first, second, second_end - second


class Pairs:
    """Rows of two segments between classifier and separators; `options` are those of `make_pairs` after the length."""

    def __init__(self, stream: Stream, length: int, special: Mapping[str, int], cache: IndexCache, *options):
        short, passes, swapped = options
        if stream.counts.documents == 1 and not swapped:
            cache.report("warning: one document only, so random segments come from it too; see ?document=blank_line")

        def build() -> Iterator[Plan]:
            to_stream = stream_places(stream)
            for part in make_pairs(*sentence_tables(stream), length, *options):
                yield part._replace(first=to_stream(part.first), second=to_stream(part.second))

        name = f"pairs-{stream.identity}-{length}-{short:g}-{passes}{'-swapped' * swapped}"
        self.plan = cache.load(Plan, name, build, f"pairing sentences for rows of {length}")
        self.stream, self.length, self.special = stream, length, special

    def __len__(self) -> int:
        return len(self.plan.first)

    def read(self, rows: np.ndarray) -> Raw:
        ids = np.zeros((len(rows), self.length + 1), np.int32)
        columns = [field[rows].tolist() for field in self.plan[:4]]
        for out, first, size, second, other in zip(ids, *columns, strict=True):
            self.stream.copy(first, out[1 : 1 + size])
            self.stream.copy(second, out[2 + size : 2 + size + other])
        # CLS at 0, A at 1 .. a, SEP at a + 1, B at a + 2 .. a + b + 1, SEP at a + b + 2.
        places, rank = np.arange(self.length, dtype=np.int32), np.arange(len(rows))
        middle = 1 + self.plan.first_lengths[rows]  # place of the first separator
        last = middle + 1 + self.plan.second_lengths[rows]
        ids[:, 0], ids[rank, [middle, last]] = self.special["classifier"], self.special["separator"]
        inside = places <= last[:, None]
        types = ((places > middle[:, None]) & inside).astype(np.int32)
        return Raw.one_segment(ids, inside, types=types, is_random=self.plan.is_random[rows])
