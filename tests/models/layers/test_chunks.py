"""Chunks of tokens: how many, of how many, and back again."""

import jax.numpy as jnp
import numpy as np
import pytest

from models.layers.logits import join_chunks, split_chunks


@pytest.mark.parametrize(
    ("length", "rows", "turns", "size"),
    [
        (12, 100, 1, 12),
        (12, 8, 3, 4),  # of two rows
        (12, 10, 3, 4),  # 5 does not divide 12, and 4 is near it
        (13, 10, 3, 5),  # 13 is prime: two zeros behind it
        (1821, 1024, 4, 456),
        (7, 1, 7, 1),
    ],
)
def test_chunks_are_few_and_alike_and_come_back_whole(length, rows, turns, size):
    tokens = {"ids": jnp.arange(1, 1 + 2 * length).reshape(2, length), "hidden": jnp.ones((2, length, 3))}
    parts = split_chunks(tokens, rows)
    assert parts["ids"].shape == (turns, 2, size) and parts["hidden"].shape == (turns, 2, size, 3)
    assert int((parts["ids"] == 0).sum()) == 2 * (turns * size - length)
    back = join_chunks(parts, length)
    for name in tokens:
        np.testing.assert_array_equal(back[name], tokens[name])
