"""Mixtures and shuffles in closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.batching.mixture import Mixture, mixing_weights, shuffle_rows
from input_pipeline.errors import DataError


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(0, 10**12))
def test_locate_keeps_proportions(weights, start):
    weights = np.array(weights) / sum(weights)
    mixture = Mixture(weights)
    source, counts = mixture.locate(start + np.arange(1000))
    for index, weight in enumerate(weights):
        mine = counts[source == index]
        assert np.array_equal(mine, np.arange(len(mine)) + (mine[0] if len(mine) else 0))  # one by one, without a gap
        # Weights are rounded to 2^-20, and each of the nested choices is off by less than one example.
        assert abs(len(mine) - 1000 * weight) < 2 * len(weights)
    _, first = mixture.locate(np.arange(100))
    assert (first <= np.arange(100)).all()


def test_locate_literal():
    source, counts = Mixture(np.array([0.5, 0.25, 0.25])).locate(np.arange(8))
    assert source.tolist() == [2, 0, 1, 0, 2, 0, 1, 0]
    assert counts.tolist() == [0, 0, 0, 1, 1, 2, 1, 3]


def test_mixing_weights_by_size_temperature_and_cap():
    small, large = (10, 10), (90, 90)
    assert mixing_weights([small, (30, 30)], (), 1.0, 0).tolist() == [0.25, 0.75]
    assert mixing_weights([small, large], (), 2.0, 0).tolist() == pytest.approx([0.25, 0.75])  # roots: 1 to 3
    assert mixing_weights([small, large], (), 1.0, 30).tolist() == [0.25, 0.75]
    assert mixing_weights([small, large], (3, 1), 1.0, 0).tolist() == [0.75, 0.25]


def test_mixing_weights_count_examples():
    """Of 100 examples each, 4 and 1 in a row, both are read as often; where 50 count, of 400 and 50, likewise."""
    assert mixing_weights([(25, 100), (100, 100)], (), 1.0, 0).tolist() == [0.2, 0.8]
    capped = mixing_weights([(100, 400), (50, 50)], (), 1.0, 50)
    assert (capped * [4, 1]).tolist() == pytest.approx([capped[1]] * 2)
    assert mixing_weights([(25, 100), (100, 100)], (1, 1), 1.0, 0).tolist() == [0.5, 0.5]


def test_mixing_weights_must_fit():
    for arguments in (((1,), 1.0, 0), ((1, 1), 2.0, 0)):
        with pytest.raises(DataError):
            mixing_weights([(1, 1), (2, 2)], *arguments)


def test_mixing_weights_extreme_values():
    assert mixing_weights([(1, 1), (1, 1)], (1.7e308, 1.7e308), 1.0, 0).tolist() == [0.5, 0.5]
    shares = mixing_weights([(10, 10), (1000, 1000), (5, 5)], (), 1e-3, 0)
    assert shares.tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-300)
    for order in (shares, np.sort(shares)[::-1]):
        source, _ = Mixture(order).locate(np.arange(100))
        assert (source == order.argmax()).sum() >= 98  # no source is left out


@pytest.mark.parametrize("size", [1, 2, 100])
def test_shuffle_rows_permutes_each_epoch(size):
    epochs = shuffle_rows(np.arange(3 * size), size, seed=0, stream=0).reshape(3, size)
    assert np.array_equal(np.sort(epochs), np.tile(np.arange(size), (3, 1)))
    if size == 100:
        orders = [epochs[0], epochs[1], np.arange(size)]
        orders += [shuffle_rows(np.arange(size), size, seed, stream) for seed, stream in ((1, 0), (0, 1))]
        assert len({tuple(order) for order in orders}) == 5
        places = np.array([299, 0, 112, 100])  # each alone as among others
        assert np.array_equal(shuffle_rows(places, size, seed=0, stream=0), epochs.ravel()[places])
