"""Permutation language modelling (Yang et al. 2019): places of a row are predicted in a random factorisation order."""

from collections.abc import Mapping

import numpy as np

from input_pipeline.batch_spec import TRUTH, Feature, by_row, by_token
from input_pipeline.corruption.base import Objective, fill_slots, slot_features
from input_pipeline.corruption.rng import sort_keys, uniform
from input_pipeline.errors import DataError
from input_pipeline.packing.xlnet_segments import FRAME, RawSegments
from input_pipeline.tokenizers.base import Tokenizer

GRAMS, SINGLES, ORDER = (0, 1), (2, 3), (4, 5)  # purposes of draws, for each half of a row


class PermutationLM(Objective):
    """Features `types`, `ranks` [B, T] and `backward` [B] (as `models.xlnet` takes them), and of `slots`.

    slots [B, K]: the predicted places in order, with their `targets` and `weights`.
    """

    kind = "permutation"
    layouts = ("stream",)
    two_segments = True
    special = ("separator", "classifier")
    needs_words = "kind=permutation"

    def __init__(self, section: Mapping, tokenizer: Tokenizer | None = None):
        self.reuse, self.block, self.predictions = section["reuse"], section["perm_size"], section["predictions"]
        self.longest, self.stretch, self.both_ways = section["longest"], section["stretch"], section["both_ways"]
        self.min_raw_length = self.reuse + 2  # a token of each segment
        if tokenizer:
            self.framing = tuple(tokenizer.special[name] for name in self.special)

    def raw_length(self, length: int) -> int:
        return length - FRAME

    def check_length(self, length: int) -> None:
        reuse, rest = self.reuse, length - self.reuse
        for name, value, fits in (
            # A block larger than `reuse` would let remembered states see tokens that come after them.
            ("perm_size", self.block, rest > 0 and not reuse % self.block and not rest % self.block),
            # One place of each half stays unpredicted; the first half has the odd prediction.
            ("predictions", self.predictions, self.predictions <= min(2 * reuse - 2, 2 * rest - 1)),
            # An n-gram is followed by at least one place of its half.
            ("longest", self.longest, self.longest < max(2, min(reuse, rest))),
        ):
            if not fits:
                raise DataError(
                    f"objective.{name}={value}: a row is {reuse} (objective.reuse) and {rest} tokens. "
                    "Choose a divisor of both, or lower it."
                )

    def _halves(self, length: int) -> tuple[tuple[int, int, int, int], ...]:
        """(first place, end, first rank, predictions) of both halves: no place of the first half sees the second."""
        second = self.predictions // 2
        return (0, self.reuse, 0, self.predictions - second), (self.reuse, length, self.reuse + 1, second)

    def features(self, batch_size: int, length: int) -> Mapping[str, Feature]:
        names = ("tokens", "segments", "positions", "types", "ranks")
        features = dict.fromkeys(names, by_token(batch_size, length))
        return features | slot_features(batch_size, self.predictions) | {"backward": by_row(batch_size, TRUTH)}

    def fill(self, batch: Mapping[str, np.ndarray], slots: np.ndarray, raw: RawSegments, keys: np.ndarray) -> None:
        chosen, ranks = self.choose(keys, raw), np.empty(raw.ids.shape, np.int32)
        free = ~(chosen | raw.functional)
        # A place sees all places of lower rank. Unpredicted ones share the lowest rank of their half, so that all see
        # them; the ranks of the second half lie above those of the first.
        for half, (begin, end, first, _) in enumerate(self._halves(raw.ids.shape[1])):
            drawn = first + draw_order(keys, half, end - begin, self.block)
            ranks[:, begin:end] = np.where(free[:, begin:end], first - 1, drawn)
        # Separators and the classifier hide their rank like targets, but nothing is learned from them.
        targets = chosen & ~raw.functional
        fill_slots(batch, slots, targets, raw.ids, targets)
        batch["tokens"][slots], batch["types"][slots], batch["ranks"][slots] = raw.ids, raw.types, ranks
        batch["segments"][slots], batch["positions"][slots] = 1, np.arange(raw.ids.shape[1])
        batch["backward"][slots] = raw.backward

    def count_predicted(self, batch: Mapping[str, np.ndarray]) -> tuple[float, float, int]:
        tokens = np.count_nonzero(batch["segments"])
        return np.count_nonzero(batch["weights"]), self.predictions * tokens / batch["segments"].shape[1], tokens

    def choose(self, keys: np.ndarray, raw: RawSegments) -> np.ndarray:
        """Places drawn for prediction, functional ones included: bool [n, R]."""
        back, chosen = raw.backward[:, None], []
        # Words begin in the order of the text, so rows that read it backwards are turned, and turned back.
        starts = self.word_starts(np.where(back, raw.ids[:, ::-1], raw.ids))
        starts = np.where(back, starts[:, ::-1], starts)
        for half, (begin, end, _, goal) in enumerate(self._halves(starts.shape[1])):
            here = starts[:, begin:end]
            # So are n-grams.
            drawn = draw_ngrams(keys, half, np.where(back, here[:, ::-1], here), goal, self.longest, self.stretch)
            chosen.append(np.where(back, drawn[:, ::-1], drawn))
        return np.concatenate(chosen, axis=1)


def draw_ngrams(keys: np.ndarray, half: int, starts: np.ndarray, goal: int, longest: int, stretch: int) -> np.ndarray:
    """Predicted places: `goal` of each row, bool [n, R].

    N-grams of 1 to `longest` pieces, n with probability proportional to 1/n, each within a stretch of n * `stretch`
    pieces: a random part of the stretch, the rest of a word (starts, bool [n, R]: where words begin), the n-gram, and
    the rest of the stretch. If the row ends too early, single places are added at random. As in the release, n counts
    pieces, where the paper counts words; its models were trained so.
    """
    rows, size = starts.shape
    place, row = np.arange(size), np.arange(rows)
    # following[r, p]: the first place from p on where a word begins, `size` if there is none: a minimum from the right.
    following = np.minimum.accumulate(np.where(starts, place, size)[:, ::-1], axis=1)[:, ::-1]
    following = np.concatenate([following, np.full((rows, 1), size)], axis=1)
    shares = np.cumsum(1 / np.arange(1, longest + 1))
    drawn = uniform(keys, GRAMS[half], 2 * goal)  # each n-gram takes at least one place: `goal` turns suffice
    lengths = 1 + np.searchsorted(shares / shares[-1], drawn[:, :goal], "right")
    chosen = np.zeros((rows, size + 1), bool)  # the last column collects places beyond the row
    at, left = np.zeros(rows, np.int64), np.full(rows, goal)
    for turn in range(goal):
        # The last n-gram of a row is shortened to the places that are left.
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
        at = np.where(length > 0, begin + length + stretched - before, size)  # a row without room is finished
    chosen = chosen[:, :size]
    if left.any():
        order = np.argsort(sort_keys(keys, SINGLES[half], ~chosen), axis=1)
        single = np.zeros_like(chosen)
        np.put_along_axis(single, order, place < left[:, None], axis=1)
        chosen = chosen | single
    return chosen


def draw_order(keys: np.ndarray, half: int, size: int, block: int) -> np.ndarray:
    """Factorisation order of `size` places, block by block, each block permuted alike: int32 [n, size]."""
    # As in the release, one permutation of a block is repeated in all blocks of the half.
    within = np.argsort(sort_keys(keys, ORDER[half], np.ones((len(keys), block), bool)), axis=1)
    begins = np.repeat(np.arange(0, size, block), block)
    return (begins + np.tile(within, (1, size // block))).astype(np.int32)
