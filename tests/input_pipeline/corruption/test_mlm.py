"""Masked language modelling against the published procedures: counts, choice and replacement of tokens."""

import itertools

import numpy as np
import pytest
from filling import build_objective, fill_batch
from read_batches import restore_masked

from input_pipeline.batch_spec import declared, empty
from input_pipeline.corruption import mlm, rng
from input_pipeline.packing.concat import Raw


def share(found, expected, number):
    """Whether a share of `number` trials is as expected, within five standard errors."""
    return abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / number)


ROBERTA = {"rounding": "random", "candidates": "any", "replacements": "text", "max_predictions": 77}


def test_count_nearest_literal():
    lengths = np.array([1, 3, 7, 10, 30, 128, 512, 520])
    counts = build_objective("masked", None).count(lengths, lengths, lengths)
    assert counts.tolist() == [1, 1, 1, 2, 4, 19, 77, 78]  # halves to even


def test_number_words_literal():
    candidates = np.array([[0, 1, 1, 1, 0, 1, 1, 0]], bool)
    begins = np.array([[1, 0, 0, 1, 1, 0, 1, 1]], bool)
    # The first piece begins a word whatever it is; a piece after a separator goes on with the word before it.
    assert mlm.number_words(candidates, begins).tolist() == [[-1, 0, 0, 1, -1, 1, 2, -1]]


@pytest.mark.parametrize(("changes", "framed", "rate"), [({}, 0, 6 / 37), (ROBERTA, 0.15, 0.15)])
def test_choose_is_uniform(vocabulary, raw_rows, changes, framed, rate):
    """Of BERT's 40 tokens 6 of the text, of RoBERTa's as many of those that frame a row."""
    raw, number = raw_rows(1, 40), 20_000
    raw.ids[0, [0, 20, 39]] = 2, 3, 3
    raw = raw.map(lambda field: field.repeat(number, 0))
    chosen = build_objective("masked", vocabulary, **changes).choose(np.arange(number), raw)
    assert (chosen.sum(1) == 6).all()
    rates = np.full(40, rate)
    rates[[0, 20, 39]] = framed
    assert (np.abs(chosen.mean(0) - rates) <= 5 * np.sqrt(rates / number)).all()


@pytest.mark.parametrize("changes", [{"max_predictions": 19}, ROBERTA], ids=["bert", "roberta"])
def test_hide_statistics(word_vocabulary, raw_rows, changes):
    """80 % are masked, 10 % random, 10 % as they were, each by itself; RoBERTa's random tokens are none of special."""
    vocab, raw = word_vocabulary.vocab_size, raw_rows(4000, 128)
    task = build_objective("masked", word_vocabulary, **changes)
    batch = fill_batch(task, raw, np.arange(4000), 128)
    np.testing.assert_array_equal(restore_masked(batch), raw.ids)
    used = batch["weights"] > 0
    assert used[:, :19].all() and (np.diff(batch["slots"])[used[:, 1:]] > 0).all()
    read, was = np.take_along_axis(batch["tokens"], batch["slots"], 1)[used], batch["targets"][used]
    mask, same = read == 4, read == was
    for found, expected in ((mask, 0.8), (same, 0.1), (mask[1:] & mask[:-1], 0.64)):
        assert share(found.mean(), expected + 0.1 / vocab, read.size)
    random = read[~mask & ~same]
    special = np.isin(random, [*word_vocabulary.special.values(), *word_vocabulary.sentinels])
    assert special.any() == (changes is not ROBERTA)
    bins = np.histogram(random[random < 900], 10, (10, 900))[0]
    assert np.abs(bins - bins.mean()).max() < 5 * np.sqrt(bins.mean())


def test_fill_short_rows(vocabulary, raw_rows):
    raw = raw_rows(3, 16)
    lengths = np.array([0, 5, 16])
    raw = raw.where(np.arange(16) < lengths[:, None])
    batch = fill_batch(build_objective("masked", vocabulary), raw, np.arange(3), 16)
    assert batch["weights"].sum(1).tolist() == [0, 1, 2]
    assert batch["slots"][1, 0] < 5 and not batch["slots"][0].any() and not batch["tokens"][0].any()


def test_fill_pairs(vocabulary):
    ids = np.array([[2, 20, 21, 3, 22, 23, 3, 0], [2, 30, 3, 31, 32, 33, 34, 3]], np.int32)
    types = np.array([[0, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1, 1]], np.int32)
    more = {"types": types, "is_random": np.array([False, True])}
    raw = Raw.one_segment(np.pad(ids, ((0, 0), (0, 1))), ids > 0, **more)
    task = build_objective("masked", vocabulary, next_sentence=True)
    batch = empty(declared(task, 3, 8, "pairs"))
    task.fill(batch, np.array([0, 2]), raw, np.arange(2))
    assert batch["next"].tolist() == [0, 0, 1] and batch["next_weights"].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(batch["types"][[0, 2]], types)
    assert not np.isin(batch["targets"][batch["weights"] > 0], [2, 3]).any()


def test_choose_weighted_statistics():
    """Against NumPy's own draw without replacement, in proportion to count ** -0.7."""
    number, counts = 8_000, np.array([1000, 1, 10, 100, 10, 0, 5])
    weights = np.maximum(counts, 1.0) ** -0.7 * (np.arange(7) != 2)
    chosen = mlm.choose_weighted(np.arange(number) * 13, np.tile(weights, (number, 1)), np.full(number, 3))
    wheel, expected = np.random.default_rng(0), np.zeros(7)
    for _ in range(number):
        expected[wheel.choice(7, 3, replace=False, p=weights / weights.sum())] += 1
    assert (chosen.sum(1) == 3).all() and not chosen[:, 2].any()
    assert np.abs(chosen.sum(0) - expected).max() < 5 * np.sqrt(2 * number * 0.25)
    few = mlm.choose_weighted(np.arange(4), np.tile(weights * (np.arange(7) < 2), (4, 1)), np.full(4, 3))
    assert few.sum(1).tolist() == [2] * 4  # no more than there are


def test_choose_smoothed_prefers_rare_tokens(word_vocabulary, raw_rows):
    raw, keys = raw_rows(400, 64), np.arange(400)
    counts = np.bincount(raw.ids.ravel(), minlength=word_vocabulary.vocab_size)
    raw.ids[:, 0], raw.ids[:, ::8] = 2, 3  # which a layout puts in: no text has counted them
    smoothed, plain = (build_objective("masked", word_vocabulary, smoothing=power) for power in (0.7, 0.0))
    smoothed.set_token_counts(counts)
    assert smoothed.needs_token_counts and not plain.needs_token_counts
    chosen, other = smoothed.choose(keys, raw), plain.choose(keys, raw)
    assert counts[raw.ids[chosen]].mean() < 0.3 * counts[raw.ids[other]].mean()
    assert (chosen.sum(1) == other.sum(1)).all() and not chosen[:, ::8].any()


def test_choose_after_first_excludes_first_tokens(vocabulary, raw_rows):
    """XLM's rule, where several pairs share a row: of each its first token, though not where its second text begins."""
    raw = raw_rows(300, 12)
    segments = np.tile(np.repeat([1, 2, 3, 0], [5, 4, 2, 1]), (300, 1))
    positions = np.tile([0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 1, 0], (300, 1))
    raw = raw._replace(segments=segments, positions=positions)
    chosen = build_objective("masked", vocabulary, candidates="after_first", share=0.9).choose(np.arange(300), raw)
    assert np.flatnonzero(chosen.any(0)).tolist() == [1, 2, 3, 4, 6, 7, 8, 10]


def choose_ngrams_released(words, order, runs, size):
    """Lan et al.'s choice among runs of words, given their order and each one's length: chosen places.

    words: the places of each. The released code takes a shorter run if one does not fit, and skips what overlaps.
    """
    chosen, covered = [], set()
    for at in order:
        if len(chosen) >= size:
            break
        n = runs[at]
        places = list(itertools.chain(*words[at : at + n]))
        while len(chosen) + len(places) > size and n > 1:
            n -= 1
            places = list(itertools.chain(*words[at : at + n]))
        if len(chosen) + len(places) > size or covered & set(places):
            continue
        covered |= set(places)
        chosen += places
    return sorted(chosen)


def drawn_runs(keys, number, longest):
    """The length of the run that is drawn from each word on: n as 1/n."""
    chances = 1 / np.arange(1, longest + 1)
    edges = np.cumsum(chances / chances.sum())
    drawn = rng.uniform(keys, mlm.NGRAM, number)
    return 1 + (drawn[..., None] >= edges).sum(-1)


@pytest.mark.parametrize(("length", "ngrams"), [(64, 3), (512, 3), (64, 1), (512, 1)])
def test_choose_ngrams_matches_release(word_vocabulary, raw_rows, length, ngrams):
    """Runs of one word are BERT's whole words."""
    raw, keys = raw_rows(40, length), np.arange(40) + 9
    raw.ids[:, 0], raw.ids[:, -1], raw.ids[:, length // 2] = 2, 3, 3
    task = build_objective("masked", word_vocabulary, whole_words=True, ngrams=ngrams, max_predictions=77)
    chosen = task.choose(keys, raw)
    words = mlm.number_words(~np.isin(raw.ids, [2, 3]), ~word_vocabulary.continues[raw.ids])
    most = words.max() + 1
    there = np.arange(most) <= words.max(1)[:, None]
    orders = np.argsort(rng.sort_keys(keys, mlm.PLACES, there), axis=1)
    runs = drawn_runs(keys, most, ngrams)
    size = round(0.15 * length)
    for row in range(40):
        places = [np.flatnonzero(words[row] == word).tolist() for word in range(words[row].max() + 1)]
        order = [at for at in orders[row].tolist() if at < len(places)]
        expected = choose_ngrams_released(places, order, runs[row].tolist(), size)
        assert np.flatnonzero(chosen[row]).tolist() == expected
    assert (chosen.sum(1) == size).mean() > 0.9


def test_choose_ngrams_lengths():
    """n as 1/n where nothing is in the way: 6, 3 and 2 of 11."""
    number = 10_000
    words = np.arange(200)[None].repeat(number, 0)
    chosen = mlm.choose_ngrams(np.arange(number), words, np.full(number, 3), 3)
    first = np.argsort(rng.sort_keys(np.arange(number), mlm.PLACES, words >= 0), axis=1)[:, 0]
    inside = first < 198
    runs = np.stack([chosen[np.arange(number), np.minimum(first + n, 199)] for n in range(3)], 1)[inside]
    found = np.bincount(runs.cumprod(1).sum(1)) / inside.sum()
    # One run in 70 or so is continued by another, and counts for longer.
    np.testing.assert_allclose(found, [0, 6 / 11, 3 / 11, 2 / 11], atol=0.02)


def test_count_by_chance_mean():
    """floor(0.15 x length + U): of 30 tokens 4 or 5, each half of the time."""
    number, task = 20_000, build_objective("masked", None, **ROBERTA)
    for length, low, chance in ((30, 4, 0.5), (511, 76, 0.65)):
        sizes = task.count(np.arange(number), np.full(number, length), None)
        assert set(sizes) == {low, low + 1} and share((sizes > low).mean(), chance, number)


def test_count_by_coins_is_binomial(vocabulary, raw_rows):
    """Each token but a row's first by itself: the number is binomial, and padding is no token."""
    raw, number = raw_rows(1, 40), 20_000
    raw = raw.map(lambda field: field.repeat(number, 0)).where(np.arange(40) < 31)
    changes = {"rounding": "coins", "candidates": "after_first", "max_predictions": 30}
    chosen = build_objective("masked", vocabulary, **changes).choose(np.arange(number), raw)
    assert not chosen[:, 0].any() and not chosen[:, 31:].any()
    counts = chosen.sum(1)
    assert abs(counts.mean() - 4.5) < 5 * np.sqrt(30 * 0.15 * 0.85 / number)
    assert counts.var() == pytest.approx(30 * 0.15 * 0.85, rel=0.05)
    assert np.abs(chosen[:, 1:31].mean(0) - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / number)
    capped = build_objective("masked", vocabulary, **changes | {"max_predictions": 5}).choose(np.arange(number), raw)
    np.testing.assert_array_equal(capped.sum(1), np.minimum(counts, 5))


def test_fill_static_masks(vocabulary, raw_rows):
    """A row is masked in so many ways, whenever and wherever it is read; another row in others."""
    raw = raw_rows(6, 64)
    task = build_objective("masked", vocabulary, masks=3, max_predictions=12)
    ways = {}
    for epoch in range(30):
        order = np.random.default_rng(epoch).permutation(6)
        batch = fill_batch(task, raw.map(lambda field, order=order: field[order]), np.arange(6) + 1000 * epoch)
        for row, tokens in zip(order.tolist(), batch["tokens"], strict=True):
            ways.setdefault(row, set()).add(tokens.tobytes())
    assert [len(ways[row]) for row in range(6)] == [3] * 6
    dynamic = build_objective("masked", vocabulary, max_predictions=12)
    assert len({fill_batch(dynamic, raw, np.arange(6) + 1000 * n)["tokens"][0].tobytes() for n in range(30)}) == 30
