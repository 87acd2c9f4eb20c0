"""Large requests of the XLA backend, which run heads one after the other, against the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import Dense, Local
from models.attention.relative import attend_relative
from tests.models.attention.conftest import arrays

B, T, M, N, H = 2, 512, 512, 4, 8  # a million scores a head


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("bias_heads", [None, 1, N])
def test_sequential_heads_with_bias_and_dropout(agree, rate, bias_heads):
    options = {"dropout_rate": rate, "dropout_rng": jax.random.key(1)}
    if bias_heads:
        options["bias"] = jnp.asarray(np.random.default_rng(2).normal(size=(1, bias_heads, T, M + T)), jnp.float32)
    agree("xla", Mask(causal=True, memory=M), arrays(M + T, heads=N, groups=2, size=H, rows=T), **options)


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "rows"), [(Dense(), M + T), (Local(M), M + T), (Local(M), M), (Local(100), 100)])
def test_sequential_heads_with_distances(pattern, rows):
    """Bands skip the keys before their window; rows of hidden distances may be missing."""
    mask, rng = Mask(causal=True, memory=M, pattern=pattern), np.random.default_rng(0)
    query, key, value, gradient = arrays(M + T, heads=N, groups=N, size=H, rows=T)
    distances = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((rows, N, H), (N, H), (N, H))]
    results = []
    for path in ("xla", "reference"):
        run = functools.partial(attend_relative, mask=mask, backend=path)
        out, pull = jax.vjp(run, query, key, value, *distances)
        results.append((out, *pull(gradient)))
    for fast, slow in zip(*results, strict=True):
        np.testing.assert_allclose(fast, slow, atol=1e-5 * max(1, float(jnp.abs(slow).max())))


def test_sequential_heads_share_memory():
    def temporaries(heads):
        def loss(*inputs):
            return jnp.sum(attend(*inputs, Mask(causal=True), backend="xla"))

        shape = jax.ShapeDtypeStruct((1, 1024, heads, H), jnp.float32)
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporaries(16) < 2 * temporaries(2)
