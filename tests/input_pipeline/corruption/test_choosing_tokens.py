"""Which tokens are predicted, against the published procedures: how many, runs of words, special tokens, copies."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from filling import filled, masked

from input_pipeline.corruption import mask_selection, rng
from input_pipeline.errors import DataError

ROBERTA = {"rounding": "random", "candidates": "any", "replacements": "text", "max_predictions": 77}


def share(found, expected, number):
    """Whether a share of `number` trials is as expected, within five standard errors."""
    return abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / number)


def released(words, order, runs, size):
    """Lan et al.'s choice among runs of words, given their order and each one's length: chosen words.

    words: the places of each. The released code puts the lists of one, two and three words from each on in random
    order, draws one, takes a shorter one where it does not fit, and passes over what meets a word that was taken.
    """
    longest = max(runs)
    lists = [[words[at : at + n] for n in range(1, longest + 1)] for at in range(len(words))]
    chosen, covered = [], set()
    for at in order:
        if len(chosen) >= size:
            break
        n = runs[at] - 1
        places = list(itertools.chain(*lists[at][n]))
        while len(chosen) + len(places) > size and n > 0:
            n -= 1
            places = list(itertools.chain(*lists[at][n]))
        if len(chosen) + len(places) > size or covered & set(places):
            continue
        covered |= set(places)
        chosen += places
    return sorted(chosen)


def drawn_runs(keys, number, longest):
    """The length of the run that is drawn from each word on: n as 1/n."""
    chances = 1 / np.arange(1, longest + 1)
    edges = np.cumsum(chances / chances.sum())
    drawn = rng.uniform(keys, mask_selection.NGRAM, number)
    return 1 + (drawn[..., None] >= edges).sum(-1)


def test_runs_by_hand():
    """Every order and every length, on four words of which the second has two pieces, for three tokens."""
    words = np.array([[0, 1, 1, -1, 2, 3]])
    places = [[0], [1, 2], [4], [5]]
    number = 3000
    keys = np.arange(number)
    chosen = mask_selection.ngrams(keys, words.repeat(number, 0), np.full(number, 3), 3)
    orders = np.argsort(rng.ranked(keys, mask_selection.PLACES, np.ones((number, 4), bool)), axis=1)
    runs = drawn_runs(keys, 4, 3)
    assert len({tuple(o) for o in orders.tolist()}) == 24 and len({tuple(r) for r in runs.tolist()}) == 81
    for row in range(number):
        expected = released(places, orders[row].tolist(), runs[row].tolist(), 3)
        assert np.flatnonzero(chosen[row]).tolist() == expected


@pytest.mark.parametrize("length", [64, 512])
def test_runs_of_real_text_are_the_released_choice(vocabulary, pieces, raw_rows, length):
    vocabulary = dataclasses.replace(vocabulary, vocab_size=len(pieces[1]), continues=pieces[1])
    raw, keys = raw_rows(40, length), np.arange(40) + 9
    raw.ids[:, 0], raw.ids[:, -1], raw.ids[:, length // 2] = 2, 3, 3
    task = masked(vocabulary, whole_words=True, ngrams=3, max_predictions=77)
    chosen = task.choose(keys, raw)
    words = mask_selection.words(~np.isin(raw.ids, [2, 3]), ~pieces[1][raw.ids])
    most = words.max() + 1
    there = np.arange(most) <= words.max(1)[:, None]
    orders = np.argsort(rng.ranked(keys, mask_selection.PLACES, there), axis=1)
    runs = drawn_runs(keys, most, 3)
    size = mask_selection.predictions(np.array([length]), 0.15, 77)[0]
    for row in range(40):
        places = [np.flatnonzero(words[row] == word).tolist() for word in range(words[row].max() + 1)]
        order = [at for at in orders[row].tolist() if at < len(places)]
        expected = released(places, order, runs[row].tolist(), size)
        assert np.flatnonzero(chosen[row]).tolist() == expected
    assert (chosen.sum(1) == size).mean() > 0.9


def test_lengths_of_runs():
    """n as 1/n where nothing is in the way: 6, 3 and 2 of 11."""
    number = 20_000
    words = np.arange(200)[None].repeat(number, 0)
    chosen = mask_selection.ngrams(np.arange(number), words, np.full(number, 3), 3)
    first = np.argsort(rng.ranked(np.arange(number), mask_selection.PLACES, words >= 0), axis=1)[:, 0]
    inside = first < 198
    runs = np.stack([chosen[np.arange(number), np.minimum(first + n, 199)] for n in range(3)], 1)[inside]
    found = Counter(runs.cumprod(1).sum(1).tolist())
    # One run in 70 or so is gone on with by another, and counts for longer.
    assert all(abs(found[n] / inside.sum() - 6 / 11 / n) < 0.02 for n in (1, 2, 3))


def test_a_number_that_is_rounded_by_chance(vocabulary, raw_rows):
    """floor(0.15 x 100 + 0.15 x 30 + U): of 30 tokens 4 or 5, each half of the time; of 20 tokens 3."""
    number = 20_000
    for length, low, chance in ((30, 4, 0.5), (20, 3, 0.0), (511, 76, 0.65)):
        sizes = mask_selection.drawn_predictions(np.arange(number), np.full(number, length), 0.15, 77)
        assert set(sizes) <= {low, low + 1}
        assert share((sizes > low).mean(), chance, number) or (chance == 0 and sizes.max() == low)
    raw = raw_rows(2000, 64)
    counts = masked(vocabulary, **ROBERTA).choose(np.arange(2000), raw).sum(1)
    assert set(counts) == {9, 10} and share((counts == 10).mean(), 0.6, 2000)


def test_any_token_is_predicted_alike(vocabulary, raw_rows):
    """Those that frame a row too, and random tokens are never special ones."""
    raw, number = raw_rows(1, 20), 30_000
    raw.ids[0, [0, 19]] = 2, 3
    raw = type(raw)(*(field.repeat(number, 0) for field in raw))
    task = masked(vocabulary, **ROBERTA)
    rates = task.choose(np.arange(number), raw).mean(0)
    assert np.abs(rates - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / number)
    batch = filled(task, raw, np.arange(number))
    read = np.take_along_axis(batch["tokens"], batch["slots"], 1)[batch["weights"] > 0]
    was = batch["targets"][batch["weights"] > 0]
    mask, same = read == 4, read == was
    assert share(mask.mean(), 0.8, read.size) and abs(same.mean() - 0.1) < 0.005
    random = read[~mask & ~same]
    assert share(random.size / read.size, 0.1, read.size)
    special = {*vocabulary.special.values(), *vocabulary.sentinels}
    assert not special & set(random.tolist()) and len(set(random.tolist())) > 850  # of 895


def test_coins(vocabulary, raw_rows):
    """Each token but a row's first by itself: the number is binomial, and padding is no token."""
    raw, number = raw_rows(1, 40), 20_000
    raw = type(raw)(*(field.repeat(number, 0) for field in raw)).where(np.arange(40) < 31)
    changes = {"rounding": "coins", "candidates": "after_first", "max_predictions": 30}
    chosen = masked(vocabulary, **changes).choose(np.arange(number), raw)
    assert not chosen[:, 0].any() and not chosen[:, 31:].any()
    counts = chosen.sum(1)
    assert abs(counts.mean() - 4.5) < 5 * np.sqrt(30 * 0.15 * 0.85 / number)
    assert counts.var() == pytest.approx(30 * 0.15 * 0.85, rel=0.05)
    assert np.abs(chosen[:, 1:31].mean(0) - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / number)
    capped = masked(vocabulary, **changes | {"max_predictions": 5}).choose(np.arange(number), raw)
    np.testing.assert_array_equal(capped.sum(1), np.minimum(counts, 5))


def test_static_masks(vocabulary, raw_rows):
    """A row is masked in so many ways, whenever and wherever it is read; another row in others."""
    raw = raw_rows(6, 64)
    task = masked(vocabulary, masks=3, max_predictions=12)
    ways = {}
    for epoch in range(30):
        order = np.random.default_rng(epoch).permutation(6)
        batch = filled(task, type(raw)(*(field[order] for field in raw)), np.arange(6) + 1000 * epoch)
        for row, tokens in zip(order.tolist(), batch["tokens"], strict=True):
            ways.setdefault(row, set()).add(tokens.tobytes())
    assert [len(ways[row]) for row in range(6)] == [3] * 6
    dynamic = masked(vocabulary, max_predictions=12)
    assert len({filled(dynamic, raw, np.arange(6) + 1000 * n)["tokens"][0].tobytes() for n in range(30)}) == 30


def test_rows_do_not_depend_on_one_another(vocabulary, raw_rows, pieces):
    vocabulary = dataclasses.replace(vocabulary, vocab_size=len(pieces[1]), continues=pieces[1])
    raw, keys, some = raw_rows(20, 64), np.arange(20) * 31, np.array([3, 17, 8])
    for changes in (ROBERTA, {"whole_words": True, "ngrams": 3}, {"rounding": "coins"}, {"masks": 4}):
        task = masked(vocabulary, **changes)
        batch = filled(task, raw, keys)
        part = filled(task, type(raw)(*(field[some] for field in raw)), keys[some])
        for name, rows in part.items():
            np.testing.assert_array_equal(rows, batch[name][some])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounding": "up"}, "objective.rounding is 'up'; choose one of: nearest, random, coins"),
        ({"candidates": "words"}, "objective.candidates is 'words'; choose one of: text, any, after_first"),
        ({"replacements": "words"}, "objective.replacements is 'words'; choose one of: any, text"),
        ({"ngrams": 3}, "objective.ngrams = 3 are of whole words; set objective.whole_words to True"),
        ({"swapped_pairs": True}, "objective.swapped_pairs = True says what pairs are"),
    ],
)
def test_what_cannot_be(vocabulary, changes, words):
    with pytest.raises(DataError, match=words):
        masked(vocabulary, **changes)
