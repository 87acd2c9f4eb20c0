"""How texts are spoilt for a model that writes them anew (Lewis et al. 2019, section 2.2): functions of ids and keys.

Rows are texts of different lengths, their ids first: int32 [n, R], with `there` bool [n, R]. What a row draws follows
from its key alone.
"""

import math
from typing import NamedTuple

import numpy as np

from input_pipeline.corruption.rng import ranked, subset, uniform

ORDER, CHOSEN, LENGTHS, STARTS, REPLACED, REPLACEMENT, INSERTED, TURNED, TURN, MOVED = range(16, 26)  # what is drawn


class Spoilt(NamedTuple):
    """Ids of spoilt texts, which ids they are of the vocabulary is not decided where `hidden`."""

    ids: np.ndarray  # int32 [n, R]
    there: np.ndarray  # bool [n, R]
    hidden: np.ndarray  # bool [n, R]: the mask's place, or a random token's


def sentences(stops: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which sentence, from 0, each token is of: int64 [n, R].

    A sentence ends with a stop, of several in a row with the first; the last one ends where the text does.
    """
    ends = stops & there
    ends[:, 1:] &= ~stops[:, :-1]
    return np.cumsum(ends, axis=1) - ends


def permuted(keys: np.ndarray, sentence: np.ndarray, there: np.ndarray, share: float) -> np.ndarray:
    """The places of a text whose sentences stand in random order, a share of them, rounded up: int64 [n, R]."""
    rows, most = np.arange(len(keys))[:, None], int(sentence.max(initial=0, where=there)) + 1
    number = np.where(there, sentence, -1).max(1) + 1
    among = np.arange(most) < number[:, None]
    moved = subset(keys, MOVED, among, np.ceil(share * number).astype(np.int64)) if share < 1 else among
    slots = np.argsort(np.where(moved, np.arange(most), most + np.arange(most)), axis=1)  # of those that are moved
    drawn = np.argsort(ranked(keys, ORDER, moved), axis=1, kind="stable")
    new = np.tile(np.arange(most), (len(keys), 1))  # the new place of each sentence among all
    np.put_along_axis(new, drawn, np.where(np.arange(most) < moved.sum(1)[:, None], slots, drawn), axis=1)
    width = there.shape[1]
    order = np.where(there, new[rows, np.minimum(sentence, most - 1)], most) * width + np.arange(width)
    return np.argsort(order, axis=1)


def poisson(chances: np.ndarray, mean: float, most: int) -> np.ndarray:
    """Poisson numbers, int64, of uniform ones from 0 to 1; `most` for any above that."""
    count = np.arange(int(min(mean + 20 * mean**0.5 + 20, most + 1)))
    logs = count * np.log(mean) - mean - np.cumsum(np.log(np.maximum(count, 1)))
    return np.searchsorted(np.cumsum(np.exp(logs))[:-1], chances, side="right")


def lengths(keys: np.ndarray, budget: np.ndarray, mean: float) -> np.ndarray:
    """Words of each span, int64 [n, M]: Poisson numbers until they add up to `budget` (int64 [n]), the last one cut.

    -1 behind the last.
    """
    most = int(budget.max(initial=0))
    number = math.ceil((most + 14 * most**0.5 + 100) / mean)  # whose sum is below `most` with a chance of 1e-24
    drawn = poisson(uniform(keys, LENGTHS, number), mean, most)
    before = np.cumsum(drawn, axis=1) - drawn
    return np.where(before < budget[:, None], np.minimum(drawn, budget[:, None] - before), -1)


def infilled(keys: np.ndarray, ids: np.ndarray, there: np.ndarray, begins: np.ndarray, share: float, mean: float):
    """`Spoilt` texts without spans of words, `share` of all words rounded up: one place is left for each span.

    begins: where words begin. Spans begin at different words and may overlap: of one that begins inside another nothing
    is left. A span of no word is a place that is put in anywhere, as long as the row has room.
    """
    begins = begins & there
    begins[:, 0] = there[:, 0]
    word = np.maximum(np.cumsum(begins, axis=1) - 1, 0)
    words = begins.sum(1)
    spans = lengths(keys, np.ceil(share * words).astype(np.int64), mean)
    starts, inside = span_words(keys, spans, words)
    rows = np.arange(len(keys))[:, None]
    first, gone = starts[rows, word] & ~inside[rows, word], inside[rows, word]
    hidden = there & begins & first
    kept = there & ~gone & (hidden | ~first)
    left = kept.sum(1)
    more = np.minimum((spans == 0).sum(1), ids.shape[1] - left)
    return inserted(keys, Spoilt(*(_first(field, kept) for field in (ids, there, hidden))), more)


def span_words(keys: np.ndarray, spans: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(words that a span begins at, words behind the beginning of some span): bool [n, W] each.

    spans: int64 [n, M], of which those of no word, and what is below 0, are none; words: int64 [n].
    """
    most = max(int(words.max(initial=0)), 1)
    order = np.argsort(ranked(keys, STARTS, np.arange(most) < words[:, None]), axis=1)
    sizes = np.take_along_axis(spans, np.argsort(spans <= 0, axis=1, kind="stable"), axis=1)[:, :most]
    order = order[:, : sizes.shape[1]]
    row, column = np.nonzero(sizes > 0)
    start, size = order[row, column], sizes[row, column]
    starts, change = np.zeros((len(keys), most), bool), np.zeros((len(keys), most + 1), np.int64)
    starts[row, start] = True
    np.add.at(change, (row, start + 1), 1)
    np.add.at(change, (row, np.minimum(start + size, most)), -1)
    return starts, np.cumsum(change, axis=1)[:, :most] > 0


def inserted(keys: np.ndarray, text: Spoilt, number: np.ndarray) -> Spoilt:
    """The texts with `number` (int64 [n]) hidden tokens more each, at random places."""
    width, there = text.ids.shape[1], text.there.sum(1)
    total = np.arange(width) < (there + number)[:, None]
    new = subset(keys, INSERTED, total, number) if number.any() else np.zeros_like(total)
    old = total & ~new
    ids, hidden = np.zeros_like(text.ids), new.copy()
    ids[old], hidden[old] = text.ids[text.there], text.hidden[text.there]
    return Spoilt(ids, total, hidden)


def hidden_tokens(keys: np.ndarray, ids: np.ndarray, there: np.ndarray, share: float) -> Spoilt:
    """`Spoilt` texts of which a share of the tokens, rounded up, is hidden, each for itself."""
    return Spoilt(ids, there, subset(keys, CHOSEN, there, np.ceil(share * there.sum(1)).astype(np.int64)))


def deleted_tokens(keys: np.ndarray, ids: np.ndarray, there: np.ndarray, share: float) -> Spoilt:
    """`Spoilt` texts without a share of the tokens, rounded up, and nothing in their place."""
    kept = there & ~hidden_tokens(keys, ids, there, share).hidden
    return Spoilt(_first(ids, kept), _first(there, kept), np.zeros_like(there))


def rotated(keys: np.ndarray, text: Spoilt, share: float) -> Spoilt:
    """The texts, a share of which begin at a random token, with what came before it at their end."""
    size = text.there.sum(1)
    turn = np.floor(uniform(keys, TURN, 1)[:, 0] * size).astype(np.int64) * (uniform(keys, TURNED, 1)[:, 0] < share)
    place = np.arange(text.ids.shape[1])
    source = np.where(text.there, (place + turn[:, None]) % np.maximum(size, 1)[:, None], place)
    return Spoilt(*(np.take_along_axis(field, source, axis=1) for field in text))


def written(keys: np.ndarray, text: Spoilt, mask: int, vocab_size: int, random: float) -> np.ndarray:
    """The ids of spoilt texts, a share `random` of what is hidden by random tokens, the rest by the mask: int32."""
    width = text.ids.shape[1]
    other = (uniform(keys, REPLACEMENT, width) * vocab_size).astype(np.int32)
    hides = np.where(uniform(keys, REPLACED, width) < random, other, np.int32(mask))
    return np.where(text.hidden, hides, text.ids)


def _first(field: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """What is `kept` of each row, moved to its front; nothing behind."""
    found = np.zeros_like(field)
    found[np.arange(field.shape[1]) < kept.sum(1)[:, None]] = field[kept]
    return found
