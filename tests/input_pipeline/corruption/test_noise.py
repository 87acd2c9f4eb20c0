"""T5's noise: its arithmetic, and the distribution of its spans."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from input_pipeline.corruption import span_noise

PUBLISHED = {64: (70, 14), 128: (141, 29), 256: (284, 58), 512: (568, 114), 1024: (1137, 229), 2048: (2274, 456)}
SPANS = {1.5: (538, 136), 2: (552, 126), 3: (568, 114), 5: (581, 105), 10: (591, 99)}


@pytest.mark.parametrize(("inputs", "expected"), PUBLISHED.items())
def test_lengths_of_text_and_targets(inputs, expected):
    assert span_noise.span_lengths(inputs, 0.15, 3.0) == expected


@pytest.mark.parametrize(("mean_span", "expected"), SPANS.items())
def test_lengths_at_other_spans(mean_span, expected):
    assert span_noise.span_lengths(512, 0.15, mean_span) == expected


def test_half_of_a_text_makes_no_longer_targets_than_inputs():
    for inputs in range(4, 200):
        text, targets = span_noise.span_lengths(inputs, 0.5, 3.0)
        tokens, spans = span_noise.counts(text, 0.5, 3.0)
        assert tokens + spans + 1 <= targets <= inputs


def test_counts_of_one_row():
    """568 tokens: 85 are taken out in 28 spans (halves to even: 85.2 and 28.33); 483 stay."""
    assert span_noise.counts(568, 0.15, 3.0) == (85, 28)
    texts = np.arange(0, 31)
    tokens, spans = span_noise.counts(texts, 0.15, 3.0)
    assert tokens.tolist() == [0, 0, *(min(max(round(0.15 * n), 1), n - 1) for n in range(2, 31))]
    assert spans.tolist() == [0, 0, *(max(round(k / 3), 1) for k in tokens[2:].tolist())]
    assert tokens[30] == 4 and tokens[10] == 2  # 4.5 and 1.5


@pytest.mark.parametrize(("total", "parts"), [(5, 1), (6, 2), (6, 3), (7, 4), (4, 4)])
def test_compositions_are_uniform(total, parts):
    number = 40_000
    found = span_noise.composition(np.arange(number), 3, np.full(number, total), np.full(number, parts))
    counts = Counter(map(tuple, found.tolist()))
    every = [c for c in itertools.product(range(1, total + 1), repeat=parts) if sum(c) == total]
    assert set(counts) == set(every) and len(every) == math.comb(total - 1, parts - 1)
    assert all(abs(count - number / len(every)) < 5 * np.sqrt(number / len(every)) for count in counts.values())


def test_rows_of_other_lengths_do_not_touch_one_another():
    texts = np.array([568, 1, 0, 30, 2, 567])
    keys = np.arange(6) + 40
    whole = span_noise.spans(keys, texts, 0.15, 3.0, 568)
    for row, text in enumerate(texts.tolist()):
        alone = span_noise.spans(keys[row : row + 1], texts[row : row + 1], 0.15, 3.0, max(text, 1))
        assert (whole[row, :text] == alone[0, :text]).all() and not whole[row, text:].any()


def runs(row):
    """(whether taken out, length) of the runs of a row."""
    return [(bool(value), len(list(group))) for value, group in itertools.groupby(row)]


def test_every_mask_is_as_likely_as_the_published_procedure_makes_it():
    """All masks of ten tokens of which four go in two spans: every pair of compositions alike."""
    number = 60_000
    rows = span_noise.spans(np.arange(number), np.full(number, 10), 0.4, 2.0, 10)
    counts = Counter(map(bytes, rows))
    assert len(counts) == math.comb(5, 1) * math.comb(3, 1)
    assert all(abs(count - number / 15) < 5 * np.sqrt(number / 15) for count in counts.values())
    for row in rows[:100]:
        assert [taken for taken, _ in runs(row)] == [False, True, False, True] and row.sum() == 4


def test_rows_of_568_begin_with_text_and_end_with_a_span():
    rows = span_noise.spans(np.arange(300), np.full(300, 568), 0.15, 3.0, 568)
    for row in rows:
        taken = [length for was, length in runs(row) if was]
        assert len(taken) == 28 and sum(taken) == 85 and not row[0] and row[-1]
    # The length of a span is 1 + k with probability C(83 - k, 26) / C(84, 27); its mean is 85 / 28.
    lengths = Counter(length for row in rows for was, length in runs(row) if was)
    total = 300 * 28
    for length in range(1, 9):
        expected = math.comb(84 - length, 26) / math.comb(84, 27)
        assert abs(lengths[length] / total - expected) < 5 * math.sqrt(expected / total)


def test_prefixes_are_uniform():
    number = 40_000
    taken = span_noise.prefixes(np.arange(number), np.full(number, 9), 12)
    assert not taken[:, 9:].any() and not (np.diff(taken[:, :9].astype(int), axis=1) < 0).any()
    counts = Counter((9 - taken.sum(1)).tolist())
    assert set(counts) == set(range(1, 9))
    assert all(abs(count - number / 8) < 5 * np.sqrt(number / 8) for count in counts.values())
    assert not span_noise.prefixes(np.arange(3), np.array([1, 0, 1]), 4).any()
