"""BERT's masking: the counts, the choice and the replacement of the released procedure."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from filling import filled, masked

from input_pipeline.batch_spec import declared, empty
from input_pipeline.corruption import mask_selection, rng
from input_pipeline.errors import DataError
from input_pipeline.packing.nsp_pairs import RawPairs


def released(tokens, begins, candidates, order, size):
    """Devlin et al.'s choice among whole words, given the order that shuffling put them in: chosen places."""
    groups = []
    for place, token in enumerate(tokens):
        if candidates[place]:
            if groups and not begins[token]:
                groups[-1].append(place)
            else:
                groups.append([place])
    chosen = []
    for group in (groups[i] for i in order if i < len(groups)):
        if len(chosen) >= size:
            break
        if len(chosen) + len(group) <= size:
            chosen.extend(group)
    return sorted(chosen)


def test_counts():
    lengths = np.array([1, 3, 7, 10, 30, 128, 512, 520])
    assert mask_selection.predictions(lengths, 0.15, 20).tolist() == [1, 1, 1, 2, 4, 19, 20, 20]  # halves to even
    assert mask_selection.predictions(lengths, 0.15, 80).tolist() == [1, 1, 1, 2, 4, 19, 77, 78]


def test_words_by_hand():
    candidates = np.array([[0, 1, 1, 1, 0, 1, 1, 0]], bool)
    begins = np.array([[1, 0, 0, 1, 1, 0, 1, 1]], bool)
    # The first piece begins a word whatever it is; a piece after a separator goes on with the word before it.
    assert mask_selection.words(candidates, begins).tolist() == [[-1, 0, 0, 1, -1, 1, 2, -1]]


def test_whole_words_that_do_not_fit_are_passed_over():
    number = 30_000
    words = np.array([[0, 0, 0, 1, 1, -1, 2]]).repeat(number, 0)
    chosen = mask_selection.whole_words(np.arange(number), words, np.full(number, 4))
    counts = Counter(tuple(np.flatnonzero(row).tolist()) for row in chosen)
    # Orders 0.., 012 021: 3 + 1 | 102 120: 2 + 1 | 201 210: 1 + 3 or 1 + 2; word 1 never fits beside word 0.
    expected = Counter()
    for order in itertools.permutations(range(3)):
        expected[tuple(released(range(7), [1, 0, 0, 1, 0, 1, 1], words[0] >= 0, order, 4))] += number / 6
    assert set(counts) == set(expected)
    assert all(abs(counts[places] - expected[places]) < 5 * np.sqrt(number / 6) for places in expected)


@pytest.mark.parametrize("length", [64, 128, 512])
def test_whole_words_of_real_text_are_the_released_choice(vocabulary, pieces, raw_rows, length):
    vocabulary = dataclasses.replace(vocabulary, vocab_size=len(pieces[1]), continues=pieces[1])
    raw, keys = raw_rows(60, length), np.arange(60) + 123
    raw.ids[:, 0], raw.ids[:, -1], raw.ids[:, length // 2] = 2, 3, 3
    whole = masked(vocabulary, whole_words=True, max_predictions=max(20, length // 7))
    chosen = whole.choose(keys, raw)
    candidates, begins = ~np.isin(raw.ids, [2, 3]), ~pieces[1]
    words = mask_selection.words(candidates, begins[raw.ids])
    there = np.arange(words.max() + 1) <= words.max(1)[:, None]
    orders = np.argsort(rng.ranked(keys, mask_selection.PLACES, there), axis=1)
    sizes = mask_selection.predictions(np.full(60, length), 0.15, max(20, length // 7))
    for row in range(60):
        expected = released(raw.ids[row], begins, candidates[row], orders[row].tolist(), sizes[row])
        assert np.flatnonzero(chosen[row]).tolist() == expected


def test_every_token_is_as_likely_to_be_predicted(vocabulary, raw_rows):
    raw, number = raw_rows(1, 40), 20_000
    raw.ids[0, [0, 20, 39]] = 2, 3, 3
    raw = type(raw)(*(field.repeat(number, 0) for field in raw))
    chosen = masked(vocabulary).choose(np.arange(number), raw)
    assert (chosen.sum(1) == 6).all() and not chosen[:, [0, 20, 39]].any()
    rates = chosen[:, np.setdiff1d(np.arange(40), [0, 20, 39])].mean(0)
    assert np.abs(rates - 6 / 37).max() < 5 * np.sqrt(6 / 37 / number)


def test_what_becomes_of_predicted_tokens(vocabulary, raw_rows, pieces):
    """80 % are masked, 10 % random, of all ids alike, 10 % as they were; each by itself."""
    vocabulary = dataclasses.replace(vocabulary, vocab_size=len(pieces[1]))
    raw = raw_rows(4000, 128)
    batch = filled(masked(vocabulary, max_predictions=19), raw, np.arange(4000), 128)
    assert (batch["weights"] == 1).all() and (np.diff(batch["slots"]) > 0).all()
    np.testing.assert_array_equal(batch["targets"], np.take_along_axis(raw.ids, batch["slots"], 1))
    read = np.take_along_axis(batch["tokens"], batch["slots"], 1)
    others = batch["tokens"].copy()
    np.put_along_axis(others, batch["slots"], batch["targets"], 1)
    np.testing.assert_array_equal(others, raw.ids)  # nothing else changed
    number, vocab = read.size, len(pieces[1])
    mask, same = (read == 4), (read == batch["targets"])
    for found, expected in ((mask, 0.8 + 0.1 / vocab), (same, 0.1 + 0.1 / vocab)):
        assert abs(found.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / number)
    random = read[~mask & ~same]
    counts = np.bincount(random, minlength=vocab) / random.size * vocab
    assert counts[[0, 1, 2, 3]].sum() > 0  # special ids too
    bins = np.histogram(random, 20, (0, vocab))[0]
    assert np.abs(bins - random.size / 20).max() < 5 * np.sqrt(random.size / 20)
    both = (mask[:, 1:] & mask[:, :-1]).mean()
    assert abs(both - 0.64) < 5 * np.sqrt(0.64 / number)


def test_rows_do_not_depend_on_one_another(vocabulary, raw_rows, pieces):
    vocabulary = dataclasses.replace(vocabulary, vocab_size=len(pieces[1]), continues=pieces[1])
    raw, keys = raw_rows(20, 64), np.arange(20) * 31
    for whole in (False, True):
        task = masked(vocabulary, whole_words=whole)
        batch = filled(task, raw, keys, 64)
        some = np.array([3, 17, 8])
        part = filled(task, type(raw)(*(field[some] for field in raw)), keys[some], 64)
        for name, rows in part.items():
            np.testing.assert_array_equal(rows, batch[name][some])


def test_short_rows_and_padding(vocabulary, raw_rows):
    raw = raw_rows(3, 16)
    lengths = np.array([0, 5, 16])
    raw = raw.where(np.arange(16) < lengths[:, None])
    batch = filled(masked(vocabulary), raw, np.arange(3), 16)
    assert batch["weights"].sum(1).tolist() == [0, 1, 2]
    assert batch["slots"][1, 0] < 5 and not batch["slots"][0].any() and not batch["tokens"][0].any()


def test_pairs_carry_types_and_labels(vocabulary):
    there = np.arange(8) < np.array([7, 8])[:, None]
    ids = np.array([[2, 20, 21, 3, 22, 23, 3, 0], [2, 30, 3, 31, 32, 33, 34, 3]], np.int32)
    types = np.array([[0, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1, 1]], np.int32)
    places = (np.arange(8) * there).astype(np.int32)
    raw = RawPairs(ids, ids, there.astype(np.int32), places, there, types, np.array([False, True]))
    task = masked(vocabulary, next_sentence=True)
    batch = empty(declared(task, 3, 8, "pairs"))
    task.fill(batch, np.array([0, 2]), raw, np.arange(2))
    assert batch["next"].tolist() == [0, 0, 1] and batch["next_weights"].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(batch["types"][[0, 2]], types)
    assert not np.isin(batch["targets"][batch["weights"] > 0], [2, 3]).any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"masked": 0.9, "random": 0.2}, "objective.masked = 0.9 and objective.random = 0.2 are shares"),
        ({"whole_words": True}, "objective.whole_words needs"),
    ],
)
def test_what_cannot_be(vocabulary, changes, words):
    with pytest.raises(DataError, match=words):
        masked(vocabulary, **changes)


def test_rare_tokens_are_drawn_as_often_as_by_a_wheel():
    """Against NumPy's own draw without replacement, in proportion to count ** -0.7."""
    number, counts = 20_000, np.array([1000, 1, 10, 100, 10, 0, 5])
    weights = np.maximum(counts, 1.0) ** -0.7 * (np.arange(7) != 2)
    chosen = mask_selection.weighted(np.arange(number) * 13, np.tile(weights, (number, 1)), np.full(number, 3))
    wheel, expected = np.random.default_rng(0), np.zeros(7)
    for _ in range(number):
        expected[wheel.choice(7, 3, replace=False, p=weights / weights.sum())] += 1
    assert (chosen.sum(1) == 3).all() and not chosen[:, 2].any()
    assert np.abs(chosen.sum(0) - expected).max() < 5 * np.sqrt(2 * number * 0.25)
    few = mask_selection.weighted(np.arange(4), np.tile(weights * (np.arange(7) < 2), (4, 1)), np.full(4, 3))
    assert few.sum(1).tolist() == [2] * 4  # no more than there are


def test_a_smoothed_row_has_its_rare_tokens_masked(vocabulary, raw_rows, pieces):
    vocabulary = dataclasses.replace(vocabulary, vocab_size=len(pieces[1]), continues=pieces[1])
    raw = raw_rows(400, 64)
    counts = np.bincount(raw.ids.ravel(), minlength=vocabulary.vocab_size)
    smoothed, plain = masked(vocabulary, smoothing=0.7), masked(vocabulary)
    smoothed.weigh(counts)
    assert smoothed.counted and not plain.counted
    rare = [counts[raw.ids[task.choose(np.arange(400), raw)]].mean() for task in (smoothed, plain)]
    assert rare[0] < 0.3 * rare[1]
    assert (smoothed.choose(np.arange(400), raw).sum(1) == plain.choose(np.arange(400), raw).sum(1)).all()
    raw.ids[:, 0], raw.ids[:, ::8] = 2, 3  # which a layout puts in: no text has counted them
    smoothed = masked(vocabulary, smoothing=0.7, candidates="any", rounding="random")
    smoothed.weigh(counts)
    chosen = smoothed.choose(np.arange(400), raw)
    assert not chosen[:, ::8].any() and abs(chosen.sum() / (400 * 64 * 0.15) - 1) < 0.02  # of all tokens
    with pytest.raises(DataError, match=r"objective\.smoothing = 0\.7 weighs tokens one by one"):
        masked(vocabulary, smoothing=0.7, whole_words=True)


def test_the_first_token_of_no_text_of_a_row_is_predicted(vocabulary, raw_rows):
    """XLM's rule, where several pairs share a row: of each its first token, though not where its second text begins."""
    raw = raw_rows(300, 12)
    segments = np.tile(np.repeat([1, 2, 3, 0], [5, 4, 2, 1]), (300, 1))
    positions = np.tile([0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 1, 0], (300, 1))
    raw = raw._replace(segments=segments, positions=positions)
    chosen = masked(vocabulary, candidates="after_first", share=0.9).choose(np.arange(300), raw)
    assert np.flatnonzero(chosen.any(0)).tolist() == [1, 2, 3, 4, 6, 7, 8, 10]


def test_a_row_has_no_more_slots_than_tokens(vocabulary, raw_rows):
    raw = raw_rows(50, 64)
    exact, beyond = (filled(masked(vocabulary, max_predictions=most), raw, np.arange(50), 64) for most in (64, 100_000))
    assert beyond["slots"].shape == (50, 64)
    for name in exact:
        np.testing.assert_array_equal(beyond[name], exact[name])
