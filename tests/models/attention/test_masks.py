"""Masks against literal tables: a row per query, a column per key, x where it sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention.masks import Mask
from models.attention.patterns import parse_pattern


def table(mask, T, S, heads=1):
    return ["".join(".x"[int(x)] for x in row) for row in np.asarray(mask.dense(T, S, heads))[0, 0]]


def row(*values):
    return jnp.array([values])


@pytest.mark.parametrize(
    ("mask", "T", "S", "expected"),
    [
        (Mask(), 2, 3, ["xxx", "xxx"]),
        (Mask(causal=True), 3, 3, ["x..", "xx.", "xxx"]),
        (Mask(causal=True, memory=2), 3, 5, ["xxx..", "xxxx.", "xxxxx"]),
        # Transformer-XL's same_length: M keys each, the query's own included
        (Mask(causal=True, memory=2, pattern=parse_pattern("local_2")), 3, 5, [".xx..", "..xx.", "...xx"]),
        (Mask(causal=True, offset=jnp.array(2)), 2, 5, ["xxx..", "xxxx."]),
        (Mask(causal=True, prefix=jnp.array([2])), 4, 4, ["xx..", "xx..", "xxx.", "xxxx"]),
        (Mask(query_segments=row(1, 1, 2, 0)), 4, 4, ["xx..", "xx..", "..x.", "...."]),
        (Mask(causal=True, query_segments=row(1, 1, 2, 0)), 4, 4, ["x...", "xx..", "..x.", "...."]),
        (Mask(query_segments=row(1, 2), key_segments=row(2, 1, 0)), 2, 3, [".x.", "x.."]),
        (Mask(key_valid=row(True, False, True)), 2, 3, ["x.x", "x.x"]),
        # Order 2, 0, 1: each sees what comes earlier; adding 1 lets each see itself (XLNet's two streams)
        (Mask(query_ranks=row(1, 2, 0), key_ranks=row(1, 2, 0)), 3, 3, ["..x", "x.x", "..."]),
        (Mask(query_ranks=row(2, 3, 1), key_ranks=row(1, 2, 0)), 3, 3, ["x.x", "xxx", "..x"]),
    ],
)
def test_dense(mask, T, S, expected):
    assert table(mask, T, S) == expected


def test_dense_offset_by_row():
    seen = Mask(causal=True, offset=jnp.array([0, 3])).dense(1, 4)
    assert np.asarray(seen[:, 0, 0]).tolist() == [[True, False, False, False], [True] * 4]


def test_dense_pattern_by_head():
    assert Mask(pattern=parse_pattern("local_1+dense")).dense(3, 3, heads=2).sum((0, 2, 3)).tolist() == [3, 9]


def test_tile_is_part_of_dense():
    segments = jnp.array([[1] * 5 + [2] * 7])
    mask = Mask(causal=True, query_segments=segments, pattern=parse_pattern("strided_3"))
    piece = jax.jit(lambda start: mask.tile(start, 4, 2, 6))(jnp.array(5))
    np.testing.assert_array_equal(piece, mask.dense(12, 12)[:, :, 5:9, 2:8])


def test_mask_crosses_jit_with_static_options_and_traced_arrays():
    traced = jax.jit(lambda mask: mask.dense(2, 4))
    assert traced(Mask(causal=True, offset=jnp.array(1))).sum() == 5
    assert traced(Mask(causal=True, offset=jnp.array(2))).sum() == 7
    assert traced._cache_size() == 1
