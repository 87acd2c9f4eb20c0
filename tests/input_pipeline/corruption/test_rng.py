"""Random numbers are uniform functions of keys and places, whichever rows are drawn together."""

from collections import Counter

import numpy as np
from filling import assert_uniform

from input_pipeline.corruption import rng


def test_numbers_row_alone_equals_row_among_others():
    keys = np.arange(5, 50) * 7919
    for draw in (rng.numbers, rng.uniform):
        whole = draw(keys, 1, 30)
        for row in (0, 17, 44):
            assert (draw(keys[row : row + 1], 1, 30) == whole[row]).all()
            assert (draw(keys[row : row + 1], 1, 11) == whole[row, :11]).all()
        assert not (draw(keys, 2, 30) == whole).any()


def test_numbers_match_splitmix64():
    """The first three outputs of SplitMix64 from seed 0."""
    state, found = 0, []
    for _ in range(3):
        state = (state + int(rng.GOLDEN)) % 2**64
        found.append(int(rng._hash(np.uint64(state)[None])[0]))
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_uniform_neighbours_are_independent():
    drawn = rng.uniform(np.arange(2000), 0, 50)
    counts, _ = np.histogram(drawn, 64, (0, 1))
    assert ((counts - drawn.size / 64) ** 2).sum() / (drawn.size / 64) < 63 + 5 * np.sqrt(2 * 63)  # chi-squared
    for a, b in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)


def test_subset_is_uniform():
    among = np.array([[True, False, True, True, True, False]]).repeat(60_000, 0)
    for size, ways in {0: 1, 1: 4, 2: 6, 3: 4, 4: 1, 7: 1}.items():
        chosen = rng.subset(np.arange(60_000), size, among, np.full(60_000, size))
        assert not (chosen & ~among).any() and (chosen.sum(1) == min(size, 4)).all()
        assert_uniform(Counter(map(bytes, chosen)), ways)


def test_sort_keys_orders_are_uniform():
    orders = np.argsort(rng.sort_keys(np.arange(60_000), 0, np.ones((60_000, 4), bool)), axis=1)
    assert_uniform(Counter(map(tuple, orders.tolist())), 24)


def test_subset_places_equal_subset():
    """For rows of one length, ragged rows, and rows of which all places are chosen."""
    draw, keys = np.random.default_rng(0), np.arange(200) * 31
    alike = np.full(200, 482), np.full(200, 27)
    ragged = draw.integers(0, 900, 200)
    for among, sizes in (
        alike,
        (ragged, draw.integers(0, ragged + 1)),
        (ragged % 12, ragged % 12),
        (ragged, ragged * 0),
    ):
        chosen = rng.subset(keys, 3, np.arange(900) < among[:, None], sizes)
        found = rng.subset_places(keys, 3, among, sizes)
        assert found.shape == (200, sizes.max())
        for row, places in enumerate(found.tolist()):
            assert places[: sizes[row]] == np.flatnonzero(chosen[row]).tolist()
            assert set(places[sizes[row] :]) <= {among[row]}
