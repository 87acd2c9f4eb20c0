"""Span corruption and prefix language modelling (T5): distribution of spans, and text of both sides."""

import math
from collections import Counter

import numpy as np
import pytest
from filling import assert_uniform, build_objective, fill_batch

from input_pipeline.corruption.spans import compose, count_noise, prefix_noise, span_lengths, span_noise

END, START = 5, 0
# (inputs, mean span): (tokens of text, tokens of targets), with a density of 0.15.
PUBLISHED = {(64, 3): (70, 14), (128, 3): (141, 29), (512, 3): (568, 114), (2048, 3): (2274, 456)}
PUBLISHED |= {(512, 1.5): (538, 136), (512, 2): (552, 126), (512, 5): (581, 105), (512, 10): (591, 99)}


def test_span_lengths_published():
    for (inputs, mean_span), expected in PUBLISHED.items():
        assert span_lengths(inputs, 0.15, mean_span) == expected


def test_span_lengths_half_density():
    for inputs in range(4, 200):
        text, targets = span_lengths(inputs, 0.5, 3.0)
        tokens, spans = count_noise(text, 0.5, 3.0)
        assert tokens + spans + 1 <= targets <= inputs


def test_count_noise_literal():
    """568 tokens: 85 are taken out in 28 spans (halves to even: 85.2 and 28.33); 483 stay."""
    assert count_noise(568, 0.15, 3.0) == (85, 28)
    texts = np.arange(0, 31)
    tokens, spans = count_noise(texts, 0.15, 3.0)
    assert tokens.tolist() == [0, 0, *(min(max(round(0.15 * n), 1), n - 1) for n in range(2, 31))]
    assert spans.tolist() == [0, 0, *(max(round(k / 3), 1) for k in tokens[2:].tolist())]
    assert tokens[30] == 4 and tokens[10] == 2  # 4.5 and 1.5


@pytest.mark.parametrize(("total", "parts"), [(5, 1), (6, 3), (7, 4), (4, 4)])
def test_compose_is_uniform(total, parts):
    found = compose(np.arange(40_000), 3, np.full(40_000, total), np.full(40_000, parts))
    assert (found > 0).all() and (found.sum(1) == total).all()
    assert_uniform(Counter(map(tuple, found.tolist())), math.comb(total - 1, parts - 1))


def test_span_noise_is_uniform():
    """All masks of ten tokens of which four go in two spans: every pair of compositions alike."""
    rows = span_noise(np.arange(60_000), np.full(60_000, 10), 0.4, 2.0, 10)
    assert_uniform(Counter(map(bytes, rows)), math.comb(5, 1) * math.comb(3, 1))
    edges = np.diff(rows[:100].astype(int), axis=1, prepend=0)
    assert (rows.sum(1) == 4).all() and ((edges > 0).sum(1) == 2).all() and not rows[:, 0].any() and rows[:, 9].all()


def test_span_noise_statistics_of_t5_rows():
    """The length of a span is 1 + k with probability C(83 - k, 26) / C(84, 27); its mean is 85 / 28."""
    rows = span_noise(np.arange(300), np.full(300, 568), 0.15, 3.0, 568)
    edges = np.diff(rows.astype(int), axis=1, prepend=0, append=0)
    lengths = np.nonzero(edges < 0)[1] - np.nonzero(edges > 0)[1]
    assert len(lengths) == 300 * 28 and (rows.sum(1) == 85).all()
    for length in range(1, 9):
        expected = math.comb(84 - length, 26) / math.comb(84, 27)
        assert abs((lengths == length).mean() - expected) < 5 * math.sqrt(expected / len(lengths))


def test_prefix_noise_is_uniform():
    taken = prefix_noise(np.arange(40_000), np.full(40_000, 9), 12)
    assert not taken[:, 9:].any() and not (np.diff(taken[:, :9].astype(int), axis=1) < 0).any()
    cuts = Counter((9 - taken.sum(1)).tolist())
    assert set(cuts) == set(range(1, 9))
    assert_uniform(cuts, 8)
    assert not prefix_noise(np.arange(3), np.array([1, 0, 1]), 4).any()


def released(ids, taken, sentinels):
    """Raffel et al.'s procedure, token by token: (input, target) of a text whose tokens `taken` go."""

    def shortened(taken):
        out, spans = [], 0
        for place, token in enumerate(ids):
            if not taken[place]:
                out.append(token)
            elif not place or not taken[place - 1]:
                out.append(sentinels[spans])
                spans += 1
        return [*out, END]

    return shortened(taken), shortened([not was for was in taken])


@pytest.mark.parametrize("length", [512, 64])
def test_fill_matches_release(vocabulary, raw_rows, length):
    task = build_objective("spans", vocabulary)
    texts = task.raw_length(length)
    raw, keys = raw_rows(50, texts), np.arange(50) * 977
    batch = fill_batch(task, raw, keys, length)
    taken = span_noise(keys, np.full(50, texts), 0.15, 3.0, texts)
    for row in range(50):
        inputs, targets = released(raw.ids[row].tolist(), taken[row].tolist(), vocabulary.sentinels)
        assert batch["inputs"][row].tolist() == inputs and len(inputs) == length
        assert batch["targets"][row].tolist() == targets and len(targets) == batch["targets"].shape[1]
        assert batch["tokens"][row].tolist() == [START, *targets[:-1]]
    for side, width in (("input_", length), ("", len(targets))):
        assert (batch[f"{side}segments"] == 1).all()
        assert (batch[f"{side}positions"] == np.arange(width)).all()
    assert (batch["weights"] == 1).all()
    if length == 512:
        assert texts == 568 and batch["targets"].shape == (50, 114)


def test_fill_short_rows(vocabulary, raw_rows):
    task = build_objective("spans", vocabulary)
    raw = raw_rows(4, 70).where(np.arange(70) < np.array([0, 1, 25, 70])[:, None])
    batch = fill_batch(task, raw, np.arange(4), 64)
    assert (batch["input_segments"].sum(1)).tolist() == [0, 2, 25 - 4 + 1 + 1, 64]  # 3.75 of 25, in a span
    assert (batch["weights"].sum(1)).tolist() == [0, 1 + 1, 4 + 1 + 1, 14]
    assert not batch["inputs"][0].any() and not batch["tokens"][0].any()
    assert batch["inputs"][1].tolist() == [raw.ids[1, 0], END] + [0] * 62


def test_fill_weights_follow_scored(vocabulary, raw_rows):
    task = build_objective("spans", vocabulary)
    raw = raw_rows(2, 70)
    raw.scored[1, :40] = False
    batch = fill_batch(task, raw, np.arange(2), 64)
    taken = span_noise(np.arange(2), np.full(2, 70), 0.15, 3.0, 70)[1]
    text = ~np.isin(batch["targets"][1], [END, *vocabulary.sentinels])
    assert batch["weights"][0].sum() == 14
    assert (batch["weights"][1][text] == raw.scored[1][taken]).all()


def test_fill_prefix(vocabulary, raw_rows):
    task = build_objective("spans", vocabulary, noise="prefix")
    assert task.raw_length(64) == 63
    raw, keys = raw_rows(200, 63), np.arange(200)
    batch = fill_batch(task, raw, keys, 64)
    cuts = batch["input_segments"].sum(1) - 1
    assert cuts.min() < 8 and cuts.max() > 55
    for row, cut in enumerate(cuts.tolist()):
        assert batch["inputs"][row].tolist() == [*raw.ids[row, :cut], END] + [0] * (63 - cut)
        assert batch["targets"][row].tolist() == [*raw.ids[row, cut:], END] + [0] * cut
        assert batch["weights"][row].sum() == 64 - cut
