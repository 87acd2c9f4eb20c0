"""Permutation language modelling against the masks and the sampling of the release, written as plain loops."""

import itertools

import numpy as np
import pytest
from filling import build_objective, fill_batch

from input_pipeline.corruption.permutation import draw_ngrams, draw_order
from input_pipeline.packing.xlnet_segments import RawSegments

SMALL = {"reuse": 24, "perm_size": 8, "predictions": 11}
LENGTH, VOCABULARY = 40, 1000


def build(vocabulary, **changes):
    return build_objective("permutation", vocabulary, **SMALL | changes)


@pytest.fixture
def known(vocabulary):
    """A tokenizer of which a third of the ids continue a word."""
    vocabulary.continues = np.arange(VOCABULARY) % 3 == 1
    return vocabulary


def raw_segments(rows, length=LENGTH, reuse=24, seed=0):
    draw = np.random.default_rng(seed)
    ids, types = draw.integers(10, VOCABULARY, (rows, length)).astype(np.int32), np.zeros((rows, length), np.int32)
    functional = np.zeros(ids.shape, bool)
    for row, middle in enumerate(draw.integers(reuse + 1, length - 3, rows)):
        types[row, middle + 1 : -1], types[row, -1] = 1, 2
        functional[row, [middle, -2, -1]] = True
        ids[row, [middle, -2, -1]] = 3, 3, 2
    return RawSegments(ids, types, functional, np.arange(rows) % 2 == 1)


def filled(objective, raw, keys=None):
    return fill_batch(objective, raw, keys, layout="stream")


def test_ranks_give_the_masks_of_the_release(known):
    """Every pair of places: within a half by the drawn order, and the second half sees all of the first."""
    objective, raw, keys = build(known), raw_segments(20), np.arange(20)
    batch, chosen = filled(objective, raw), objective.choose(keys, raw)
    orders = [draw_order(keys, half, size, 8) for half, size in enumerate((24, 16))]
    for row in range(20):
        target, functional = chosen[row] & ~raw.functional[row], raw.functional[row]
        rank = np.concatenate([orders[0][row], orders[1][row]])
        rank = np.where(target | functional, rank, -1)
        of_query = rank + ~target
        for i, j in itertools.product(range(LENGTH), repeat=2):
            if (i < 24) != (j < 24):
                hidden = i < 24  # the first half never sees the second, which sees all of the first
            else:
                hidden = of_query[i] <= rank[j] and (target[j] or functional[j])
            ranks = batch["ranks"][row]
            assert (ranks[j] < ranks[i] + (not target[i])) == (not hidden), (i, j)
            assert (ranks[j] < ranks[i] + 1) == (not hidden or (i == j and target[i])), (i, j)  # the content stream's


def test_draw_order_repeats_in_blocks():
    found = draw_order(np.arange(300), 1, 24, 8)
    blocks = found.reshape(300, 3, 8)
    np.testing.assert_array_equal(np.sort(blocks, axis=2), np.broadcast_to(np.arange(24).reshape(3, 8), blocks.shape))
    assert (np.diff(blocks, axis=1) == 8).all()  # each block's order is the same
    assert len(np.unique(found, axis=0)) > 290 and (found != draw_order(np.arange(300), 0, 24, 8)).any()
    np.testing.assert_allclose(found[:, :8].mean(0), 3.5, atol=0.5)


def released(starts, goal, longest, stretch, draw):
    """The released sampling of one half, one token at a time, with its quirk: the end test looks at the first piece."""
    size, mask, count, at = len(starts), np.zeros(len(starts), bool), 0, 0
    shares = 1 / np.arange(1, longest + 1)
    while at < size and count < goal:
        n = min(draw.choice(np.arange(1, longest + 1), p=shares / shares.sum()), goal - count)
        context = n * stretch
        left = draw.integers(context)
        begin = at + left
        while begin < size and not starts[begin]:
            begin += 1
        if begin >= size:
            break
        end, grams_seen = begin + 1, 1
        while end < size:
            if starts[begin]:
                grams_seen += 1
                if grams_seen > n:
                    break
            end += 1
        if end >= size:
            break
        mask[begin:end] = True
        count += end - begin
        at = end + context - left
    while count < goal:
        place = draw.integers(size)
        count += not mask[place]
        mask[place] = True
    return mask


def runs(mask):
    """Lengths of the runs of each row, one after another."""
    edges = np.diff(np.pad(mask.astype(int), ((0, 0), (1, 1))), axis=1)
    return np.nonzero(edges < 0)[1] - np.nonzero(edges > 0)[1]


@pytest.mark.parametrize("goal", [43, 90])
def test_draw_ngrams_statistics_of_the_release(raw_rows, pieces, goal):
    """On real text: counts, rates by place, lengths of runs and share of word starts."""
    ids, size = raw_rows(3000, 256).ids, 256
    starts = ~pieces[1][ids]
    found = draw_ngrams(np.arange(len(ids)), 0, starts, goal, 5, 6)
    draw = np.random.default_rng(0)
    expected = np.stack([released(row, goal, 5, 6, draw) for row in starts[:1000]])
    assert (found.sum(1) == goal).all() and (expected.sum(1) == goal).all()
    by_place = [mask.mean(0).reshape(16, -1).mean(1) for mask in (found, expected)]
    np.testing.assert_allclose(*by_place, atol=4 * np.sqrt(0.25 / (1000 * size / 16)))
    lengths = [np.bincount(runs(mask), minlength=12)[:12] / len(runs(mask)) for mask in (found, expected)]
    np.testing.assert_allclose(*lengths, atol=0.015)
    shares = [starts[: len(mask)][mask].mean() for mask in (found, expected)]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)


def test_slots_are_targets_in_order(known):
    raw = raw_segments(60)
    objective = build(known)
    batch, chosen = filled(objective, raw), objective.choose(np.arange(60), raw)
    assert (chosen[:, :24].sum(1) == 6).all() and (chosen[:, 24:].sum(1) == 5).all()
    assert chosen[raw.functional].any()  # which then have no slot
    for row in range(60):
        places = np.flatnonzero(chosen[row] & ~raw.functional[row])
        assert batch["slots"][row, : len(places)].tolist() == places.tolist()
        assert batch["targets"][row, : len(places)].tolist() == raw.ids[row, places].tolist()
        assert batch["weights"][row].tolist() == [1.0] * len(places) + [0.0] * (11 - len(places))
    np.testing.assert_array_equal(batch["tokens"], raw.ids)
    np.testing.assert_array_equal(batch["types"], raw.types)
    np.testing.assert_array_equal(batch["backward"], raw.backward)


def test_choose_backward_rows_mirror_forward_rows(known):
    """Reversed text has reversed places."""
    raw = raw_segments(50)
    forward = raw._replace(backward=np.zeros(50, bool))
    turned = forward._replace(backward=np.ones(50, bool), ids=raw.ids.copy())
    for begin, end in ((0, 24), (24, LENGTH)):
        turned.ids[:, begin:end] = raw.ids[:, begin:end][:, ::-1]
    one, other = (build(known).choose(np.arange(50), rows) for rows in (forward, turned))
    for begin, end in ((0, 24), (24, LENGTH)):
        np.testing.assert_array_equal(one[:, begin:end], other[:, begin:end][:, ::-1])
