"""Arrays, masks of every kind, and the comparison of a path with the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern

T, M = 160, 40  # rows of more than one block of 128 queries, which do not fill the last


def masks() -> dict[str, tuple[Mask, int]]:
    """name -> (mask, number of keys), for two rows of T queries."""
    rng = np.random.default_rng(0)
    segments = jnp.array([[1] * 50 + [2] * 90 + [0] * (T - 140), [3] * T])
    ranks = jnp.array([rng.permutation(T), rng.permutation(T)])
    half_full = jnp.arange(T + M)[None, :] >= jnp.array([[0], [M - 7]])
    return {
        "bidirectional": (Mask(), T),
        "causal": (Mask(causal=True), T),
        "segments": (Mask(query_segments=segments), T),
        "causal segments": (Mask(causal=True, query_segments=segments), T),
        "cross": (Mask(key_valid=jnp.arange(90)[None, :] < jnp.array([[90], [37]])), 90),
        "prefix": (Mask(causal=True, prefix=jnp.array([70, 3])), T),
        "memory": (Mask(causal=True, memory=M), T + M),
        "memory half full": (Mask(causal=True, memory=M, key_valid=half_full), T + M),
        "memory same length": (Mask(causal=True, memory=M, pattern=parse_pattern(f"local_{M}")), T + M),
        "offset": (Mask(causal=True, offset=jnp.array([M, 3])), T + M),
        "permutation": (Mask(query_ranks=ranks, key_ranks=ranks), T),
    }


MASKS = masks()
SPARSE = ("local_16", "local_1", "local_128", "column_16", "block_16", "strided_16", "summary_16_4", "fixed_16_4")


def arrays(S=T, heads=4, groups=2, size=8, rows=T, dtype=jnp.float32):
    """Random query, key, value and gradient by the output."""
    rng = np.random.default_rng(1)
    shapes = (2, rows, heads, size), (2, S, groups, size), (2, S, groups, size), (2, rows, heads, size)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def with_gradients(path, mask, query, key, value, gradient, bias=None, **options):
    """Output, and gradients by query, key, value (and the bias's arrays), as one list of float32 arrays."""
    inputs = (query, key, value) if bias is None else (query, key, value, bias)

    @jax.jit
    def step(mask, inputs, gradient):
        def run(query, key, value, bias=None):
            return attend(query, key, value, mask, bias=bias, backend=path, **options)

        out, pull = jax.vjp(run, *inputs)
        return out, *pull(gradient)

    return [np.asarray(x, np.float32) for x in jax.tree.leaves(step(mask, inputs, gradient))]


@pytest.fixture
def agree():
    """`agree(path, mask, arrays, tolerance, **options)`: the path equals the oracle, in values and gradients.

    Entries are of size 1; float32 sums of 200 of them, taken in another order, differ by some 1e-6.
    """

    def check(path, mask, given, tolerance=1e-5, **options):
        fast, slow = (with_gradients(one, mask, *given, **options) for one in (path, "reference"))
        names = ("output", "query", "key", "value", *["bias"] * (len(fast) - 4))
        for name, a, b in zip(names, fast, slow, strict=True):
            assert np.isfinite(a).all(), name
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, np.abs(b).max()), err_msg=name)

    return check
