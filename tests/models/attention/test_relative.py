"""Relative attention: the shift by hand, attention against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention.biases import shift_rows
from models.attention.masks import Mask
from models.attention.patterns import Dense, Local
from models.attention.relative import attend_relative, distance_table, relative_gather


def relative_shift(by_row, keys):
    """Zeros on the left for the keys that no row reaches, then the shift."""
    unreached = max(keys - by_row.shape[-1], 0)
    return shift_rows(jnp.pad(by_row, [(0, 0)] * (by_row.ndim - 1) + [(1 + unreached, 0)]), keys)


def test_shift_by_hand():
    """Three queries, five keys, 0..14 row by row; the causal mask hides what wraps around."""
    shifted = relative_shift(jnp.arange(15.0).reshape(3, 5), 5)
    np.testing.assert_array_equal(shifted, [[2, 3, 4, 0, 5], [6, 7, 8, 9, 0], [10, 11, 12, 13, 14]])


@pytest.mark.parametrize(
    ("T", "S", "both_ways"), [(3, 5, False), (3, 5, True), (4, 4, False), (4, 4, True), (1, 6, False)]
)
def test_shift_equals_gather(T, S, both_ways):
    rows = S + T - 1 if both_ways else S
    by_row = jax.random.normal(jax.random.key(0), (2, 3, T, rows))
    positions = (S - T + jnp.arange(T))[None, None]
    fast, slow = relative_shift(by_row, S), relative_gather(by_row, positions, S, S)
    seen = jnp.ones((T, S), bool) if both_ways else Mask(causal=True, memory=S - T).dense(T, S)[0, 0]
    np.testing.assert_array_equal(jnp.where(seen, fast, 0), jnp.where(seen, slow, 0))


def brute_force(query, key, value, distance_keys, u, v, seen):
    """The formula, one query and key at a time."""
    T, H = query.shape[1], query.shape[3]
    S = key.shape[1]
    scores = [
        [
            jnp.einsum("BNH,BNH->BN", query[:, i] + u[None], key[:, j])
            + jnp.einsum("BNH,NH->BN", query[:, i] + v[None], distance_keys[min(S - 1 - (S - T + i - j), S - 1)])
            for j in range(S)
        ]
        for i in range(T)
    ]
    scores = jnp.stack([jnp.stack(row, -1) for row in scores], -2) / np.sqrt(H)  # [B, N, T, S]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value)


@pytest.mark.parametrize(
    "mask", [Mask(causal=True), Mask(causal=True, memory=6), Mask(causal=True, memory=6, pattern=Local(6))]
)
@pytest.mark.parametrize("path", ["xla", "chunked"])
def test_attend_relative_equals_brute_force(path, mask):
    B, T, N, H = 2, 5, 3, 4
    S = T + mask.memory
    rng = np.random.default_rng(0)
    shapes = [(B, T, N, H), (B, S, N, H), (B, S, N, H), (S, N, H), (N, H), (N, H)]
    inputs = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    gradient = jnp.asarray(rng.normal(size=(B, T, N, H)), jnp.float32)
    results = []
    for run in (
        lambda *inputs: attend_relative(*inputs, mask, backend=path),
        lambda *inputs: brute_force(*inputs, mask.dense(T, S)),
    ):
        out, pull = jax.vjp(run, *inputs)
        results.append((out, *pull(gradient)))
    for fast, slow in zip(*results, strict=True):
        np.testing.assert_allclose(fast, slow, atol=1e-5)


def test_attend_relative_with_an_offset_by_row():
    """One query a row, at its own offset, equals the same row's query of an ordinary call."""
    B, T, N, H = 2, 6, 2, 4
    rng = np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.normal(size=(B, T, N, H)), jnp.float32) for _ in range(3))
    rows, u, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in [(T, N, H), (N, H), (N, H)])
    whole = attend_relative(query, key, value, rows, u, v, Mask(causal=True))
    ends = jnp.array([2, 5])
    one = query[jnp.arange(B), ends][:, None]
    cached = attend_relative(one, key, value, rows, u, v, Mask(causal=True, offset=ends))
    np.testing.assert_allclose(cached[:, 0], whole[jnp.arange(B), ends], atol=1e-6)


@pytest.mark.parametrize("pattern", [Dense(), Local(6)])
@pytest.mark.parametrize("path", ["reference", "xla", "chunked"])
def test_attend_relative_leaks_nothing_between_documents(path, pattern):
    """Document 2 changes; not a bit of document 1, which began in the memory, or of the other row does."""
    B, T, M, N, H = 2, 8, 6, 2, 4
    rng = np.random.default_rng(0)
    segments = jnp.array([[1] * 3 + [2] * 5, [1] * 8])
    remembered = jnp.array([[0] * 2 + [1] * 4, [1] * 6])  # row 0's memory begins with an older document
    keys = jnp.concatenate([remembered, segments], axis=1)
    mask = Mask(causal=True, memory=M, pattern=pattern, query_segments=segments, key_segments=keys)
    shared = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in [(M + T, N, H), (N, H), (N, H)]]
    lengths = (T, M + T, M + T, T)
    given = [jnp.asarray(rng.normal(size=(B, length, N, H)), jnp.float32) for length in lengths]
    changed = [x.at[0, -5:].add(50.0) for x in given]  # the last five are document 2's in all four
    changed[1:3] = [x.at[0, :2].add(50.0) for x in changed[1:3]]

    @jax.jit
    def run(query, key, value, gradient):
        out, pull = jax.vjp(lambda *qkv: attend_relative(*qkv, *shared, mask, backend=path), query, key, value)
        return out, *pull(gradient)

    for before, after in zip(run(*given), run(*changed), strict=True):
        first = before.shape[1] - T  # of the current segment
        np.testing.assert_array_equal(before[0, max(0, first - 4) : first + 3], after[0, max(0, first - 4) : first + 3])
        np.testing.assert_array_equal(before[1], after[1])
        assert np.abs(before[0, -5:] - after[0, -5:]).max() > 1e-3


def test_distance_table():
    """Sines, then cosines, of clamped distances."""
    table = distance_table(2, 4, 4, clamp=2)
    angles = np.array([2, 2, 1, 0])[:, None] * np.array([1.0, 0.01])
    np.testing.assert_allclose(table, np.concatenate([np.sin(angles), np.cos(angles)], -1), atol=1e-6)
    assert distance_table(2, 4, 4, both_ways=True).shape == (5, 4)
