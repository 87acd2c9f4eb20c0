"""Permutation language modelling (Yang et al. 2019): some places of a row are predicted, in a random order of all."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from input_pipeline.batch_spec import REAL, TRUTH, Feature, by_row, by_token
from input_pipeline.corruption.base import Objective
from input_pipeline.corruption.rng import ranked, uniform
from input_pipeline.errors import LENGTH, DataError
from input_pipeline.packing.xlnet_segments import FRAME, RawSegments
from input_pipeline.tokenizers.base import Tokenizer

GRAMS, SINGLES, ORDER = (0, 1), (2, 3), (4, 5)  # what is drawn, for each half of a row


def grams(keys: np.ndarray, half: int, starts: np.ndarray, goal: int, longest: int, stretch: int) -> np.ndarray:
    """Which places of rows are predicted: bool [n, R], `goal` of each.

    They are n-grams of 1 to `longest` pieces, n in proportion to 1/n, each within a stretch of n * `stretch` pieces: a
    random part of it comes first, then what is left of a word (`starts`, bool [n, R], says where words begin), the
    n-gram, and the rest. Where a row ends before there are enough, single places are added at random. (In the release
    n counts pieces, where words were meant; its models were trained so.)
    """
    rows, size = starts.shape
    place, row = np.arange(size), np.arange(rows)
    # The next place, from each on, at which a word begins: `size` where there is none.
    following = np.minimum.accumulate(np.where(starts, place, size)[:, ::-1], axis=1)[:, ::-1]
    following = np.concatenate([following, np.full((rows, 1), size)], axis=1)
    shares = np.cumsum(1 / np.arange(1, longest + 1))
    drawn = uniform(keys, GRAMS[half], 2 * goal)  # each takes a place at least, so that `goal` turns suffice
    lengths = 1 + np.searchsorted(shares / shares[-1], drawn[:, :goal], "right")
    chosen = np.zeros((rows, size + 1), bool)  # the last column takes what is not there
    at, left = np.zeros(rows, np.int64), np.full(rows, goal)
    for turn in range(goal):
        length = np.minimum(lengths[:, turn], left)
        stretched = length * stretch
        before = (drawn[:, goal + turn] * stretched).astype(np.int64)
        begin = following[row, np.minimum(at + before, size)]
        length = length * (begin + length < size)
        if not length.any():
            break
        for more in range(int(length.max())):
            chosen[row, np.where(more < length, begin + more, size)] = True
        left -= length
        at = np.where(length > 0, begin + length + stretched - before, size)  # who finds no place is done
    chosen = chosen[:, :size]
    if left.any():
        order = np.argsort(ranked(keys, SINGLES[half], ~chosen), axis=1)
        single = np.zeros_like(chosen)
        np.put_along_axis(single, order, place < left[:, None], axis=1)
        chosen = chosen | single
    return chosen


def order(keys: np.ndarray, half: int, size: int, block: int) -> np.ndarray:
    """The random order in which `size` places come, block by block: int32 [n, size], each block's the same."""
    within = np.argsort(ranked(keys, ORDER[half], np.ones((len(keys), block), bool)), axis=1)
    begins = np.repeat(np.arange(0, size, block), block)
    return (begins + np.tile(within, (1, size // block))).astype(np.int32)


class Permutation(Objective):
    """Batches of rows with their `types`, `ranks` and `backward` (as `models.xlnet` takes them), and of `slots`.

    slots [B, K], the places that are predicted, in order, with their `targets` and `weights`.
    """

    layouts = ("stream",)
    segmented = True
    special = ("separator", "classifier")

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.reuse, self.block, self.predictions = section["reuse"], section["perm_size"], section["predictions"]
        self.longest, self.stretch, self.both_ways = section["longest"], section["stretch"], section["both_ways"]
        self.least = self.reuse + 2  # a token of each segment
        if self.block > self.reuse:
            raise DataError(
                f"objective.perm_size = {self.block} is longer than objective.reuse = {self.reuse}: the next row would "
                "remember states that have seen what comes later; make it at most that"
            )
        if self.reuse % self.block:
            raise DataError(
                f"objective.perm_size = {self.block} does not divide objective.reuse = {self.reuse}; choose a divisor"
            )
        if tokenizer:
            if tokenizer.continues is None:
                raise DataError(
                    "objective.kind = permutation predicts n-grams that begin with a word, and this tokenizer does not "
                    "say which ids do; use one of kind sentencepiece or wordpiece"
                )
            self.continues = tokenizer.continues
            self.framing = tuple(tokenizer.special[name] for name in self.special)

    def raw_length(self, length: int) -> int:
        return length - FRAME

    def check(self, length: int) -> None:
        """Raises DataError where rows of `length` have no two halves, or predictions or n-grams too many for them."""
        rest = length - self.reuse
        if rest <= 0 or rest % self.block:
            raise DataError(
                f"rows of {length} tokens leave {rest} behind the first objective.reuse = {self.reuse}, which "
                f"objective.perm_size = {self.block} does not divide; set {LENGTH} to that many "
                f"more than {self.reuse}, or to a multiple of it more"
            )
        most = min(2 * self.reuse - 2, 2 * rest - 1)  # of each half a place is left, and the first has the odd one
        remedy = (
            f"lower it to at most {most}" if most else "raise objective.reuse to at least 2, and data.length as much"
        )
        for size, goal in zip((self.reuse, rest), self._goals(), strict=True):
            if goal >= size:
                raise DataError(
                    f"objective.predictions = {self.predictions} asks for {goal} places of {size}, of which one at "
                    f"least is read; {remedy}"
                )
        room = min(self.reuse, rest) - 1  # a place behind an n-gram is its half's too
        if self.longest > max(1, room):
            raise DataError(
                f"objective.longest = {self.longest} pieces are more than an n-gram can have in each half of rows of "
                f"{length} tokens, of which one has {room + 1}; lower it to at most {max(1, room)}, or raise "
                "objective.reuse and the row's length"
            )

    def _goals(self) -> tuple[int, int]:
        """How many places of each half are predicted."""
        return self.predictions - self.predictions // 2, self.predictions // 2

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        self.check(length)
        tokens = by_token(batch_size, length)
        features = dict.fromkeys(("tokens", "types", "ranks", "segments", "positions"), tokens)
        slot = Feature((batch_size, self.predictions), np.dtype(np.int32), ("batch", None))
        features |= {"slots": slot, "targets": slot, "weights": slot._replace(dtype=REAL)}
        return features | {"backward": by_row(batch_size, TRUTH)}

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: RawSegments, keys: np.ndarray) -> None:
        chosen, ranks = self.choose(keys, raw), np.empty(raw.ids.shape, np.int32)
        free = ~(chosen | raw.functional)
        # Places that are not predicted come before all others of their half; the first half comes before the second.
        for half, (begin, end, first) in enumerate(self._halves(raw.ids.shape[1])):
            here = first + order(keys, half, end - begin, self.block)
            ranks[:, begin:end] = np.where(free[:, begin:end], first - 1, here)
        targets = chosen & ~raw.functional
        _, places = np.nonzero(targets)
        there = np.arange(self.predictions) < targets.sum(1)[:, None]
        for name, values in (("slots", places), ("targets", raw.ids[targets]), ("weights", 1)):
            listed = np.zeros(there.shape, batch[name].dtype)
            listed[there] = values
            batch[name][slots] = listed
        batch["tokens"][slots], batch["types"][slots], batch["ranks"][slots] = raw.ids, raw.types, ranks
        batch["segments"][slots], batch["positions"][slots] = 1, np.arange(raw.ids.shape[1])
        batch["backward"][slots] = raw.backward

    def choose(self, keys: np.ndarray, raw: RawSegments) -> np.ndarray:
        """The places of rows that are to be predicted, were it not for functional ones among them: bool [n, R]."""
        starts, back = ~self.continues[raw.ids], raw.backward[:, None]
        chosen = []
        for half, ((begin, end, _), goal) in enumerate(zip(self._halves(starts.shape[1]), self._goals(), strict=True)):
            here = starts[:, begin:end]  # in the order of the text, whichever way it is read
            found = grams(keys, half, np.where(back, here[:, ::-1], here), goal, self.longest, self.stretch)
            chosen.append(np.where(back, found[:, ::-1], found))
        return np.concatenate(chosen, axis=1)

    def _halves(self, length: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(first place, the one after the last, the first rank) of both halves: none of the first sees the second."""
        return (0, self.reuse, 0), (self.reuse, length, self.reuse + 1)

    def prompts(self, texts: Sequence[str]) -> NoReturn:
        """Errors: DataError, since places are predicted from both sides."""
        raise DataError(
            "objective.kind = permutation predicts places of a text from both sides and does not go on with it; train "
            "with one that writes, such as causal"
        )
