"""Shuffles in closed form."""

import numpy as np
import pytest

from input_pipeline.batching.shuffle import shuffled


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_every_epoch_is_a_permutation_of_its_own(size):
    epochs = shuffled(np.arange(3 * size), size, seed=0, stream=0).reshape(3, size)
    assert np.array_equal(np.sort(epochs), np.tile(np.arange(size), (3, 1)))
    if size == 100:
        orders = [epochs[0], epochs[1], np.arange(size)]
        orders += [shuffled(np.arange(size), size, seed, stream) for seed, stream in ((1, 0), (0, 1))]
        assert len({tuple(order) for order in orders}) == 5


def test_a_place_of_a_shuffle_needs_no_other():
    whole = shuffled(np.arange(1000), 300, seed=5, stream=2)
    places = np.array([999, 0, 512, 299, 300])
    assert np.array_equal(shuffled(places, 300, seed=5, stream=2), whole[places])
