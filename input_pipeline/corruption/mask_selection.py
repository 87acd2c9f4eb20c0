"""Which tokens of texts are predicted: how many, and which of them, as functions of keys and of the rows alone."""

import numpy as np

from input_pipeline.corruption.rng import ranked, uniform

PLACES, FATE, REPLACEMENT, NUMBER, NGRAM = range(5)  # what is drawn
ROUNDING = ("nearest", "random", "coins")


def predictions(lengths: np.ndarray, share: float, most: int) -> np.ndarray:
    """How many tokens of texts of so many are predicted: a share, at least one; halves are rounded to even."""
    return np.minimum(most, np.maximum(1, np.rint(share * lengths))).astype(np.int64)


def drawn_predictions(keys: np.ndarray, lengths: np.ndarray, share: float, most: int) -> np.ndarray:
    """The same, rounded down or up by chance, so that the mean is the share (Liu et al. 2019, in the released code)."""
    return np.minimum(most, np.floor(share * lengths + uniform(keys, NUMBER, 1)[:, 0])).astype(np.int64)


def tossed_predictions(keys: np.ndarray, candidates: np.ndarray, share: float, most: int) -> np.ndarray:
    """The same where a coin is tossed for each of the `candidates`, bool [n, R] (Lample and Conneau 2019)."""
    heads = (uniform(keys, NUMBER, candidates.shape[1]) < share) & candidates
    return np.minimum(most, np.count_nonzero(heads, axis=1))


def weighted(keys: np.ndarray, weights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`sizes` places of each row, drawn one after another in proportion to `weights` (float [n, R]): bool [n, R].

    No place is drawn twice, and none of weight 0. Each place waits for a time that is exponential at its weight, and
    the first to come are drawn (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
    """
    there = weights > 0
    times = -np.log1p(-uniform(keys, PLACES, weights.shape[1])) / np.where(there, weights, 1.0)
    order = np.argsort(np.where(there, times, np.inf), axis=1, kind="stable")
    sizes = np.minimum(sizes, np.count_nonzero(there, axis=1))
    chosen = np.zeros(weights.shape, bool)
    np.put_along_axis(chosen, order, np.arange(weights.shape[1]) < sizes[:, None], axis=1)
    return chosen


def words(candidates: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """The word, from 0, that each of the `candidates` (bool [n, R]) belongs to; -1 elsewhere. int64 [n, R].

    A word is a candidate that begins one, or is the first, and those after it that do not.
    """
    first = candidates & (np.cumsum(candidates, axis=1) == 1)
    return np.where(candidates, np.cumsum(candidates & (begins | first), axis=1) - 1, -1)


def whole_words(keys: np.ndarray, words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Words in random order, each taken if it fits into what is left of `sizes` (int64 [n]): bool [n, R] of tokens."""
    rows, lengths = np.arange(len(keys)), _lengths(words)
    order = np.argsort(ranked(keys, PLACES, lengths > 0), axis=1)
    taken = np.zeros((len(keys), lengths.shape[1] + 1), bool)
    left = sizes.copy()
    for word in order.T:
        if not left.any():
            break
        size = lengths[rows, word]
        fits = (size > 0) & (size <= left)
        taken[rows, word] = fits
        left -= size * fits
    return taken[rows[:, None], words]


def ngrams(keys: np.ndarray, words: np.ndarray, sizes: np.ndarray, longest: int) -> np.ndarray:
    """Runs of words, from random ones on, each taken if it fits into what is left of `sizes`: bool [n, R] of tokens.

    A run is of n words with a probability that is as 1/n, n from 1 to `longest`, fewer where the text ends; where that
    does not fit it is of as many as do. One that meets another is passed over (Lan et al. 2019, section 4.1, and the
    released code).
    """
    rows, lengths = np.arange(len(keys)), _lengths(words)
    most = lengths.shape[1]
    order = np.argsort(ranked(keys, PLACES, lengths > 0), axis=1)
    chance = np.cumsum(1 / np.arange(1, longest + 1))
    run = 1 + np.searchsorted(chance / chance[-1], uniform(keys, NGRAM, most), "right")  # words of a run from each on
    # Tokens before each word; behind the last word stand words without tokens.
    before = np.pad(np.pad(np.cumsum(lengths, axis=1), ((0, 0), (1, 0))), ((0, 0), (0, longest)), mode="edge")
    taken = np.zeros((len(keys), most + longest + 1), bool)
    left = sizes.copy()
    for word in order.T:
        if not left.any():
            break
        there = lengths[rows, word] > 0
        begin, number = before[rows, word], np.zeros(len(keys), np.int64)
        for n in range(1, longest + 1):
            number = np.where(there & (n <= run[rows, word]) & (before[rows, word + n] - begin <= left), n, number)
        free = number > 0
        for n in range(longest):
            free &= (n >= number) | ~taken[rows, word + n]
        for n in range(longest):
            taken[rows, word + n] |= free & (n < number)
        left -= (before[rows, word + number] - begin) * free
    taken[:, -1] = False
    return taken[rows[:, None], words]


def _lengths(words: np.ndarray) -> np.ndarray:
    """Tokens of each word, int64 [n, words of the row that has most]."""
    most = words.max(initial=-1) + 1
    lengths = np.zeros((len(words), most + 1), np.int64)
    np.add.at(lengths, (np.arange(len(words))[:, None], words), 1)  # those of no word in the last column
    return lengths[:, :most]
