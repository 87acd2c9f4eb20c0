"""Large requests of the XLA path, whose heads take turns, against the oracle: values, gradients, and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention import attend
from models.attention.relative import attend_relative
from models.masks import Mask
from models.patterns import Dense, Local

B, T, M, N, G, H = 2, 512, 512, 4, 2, 8  # 2 million scores of the heads that share a key head


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def same(run, inputs, gradient):
    """Values and gradients of `run(path, *inputs)` on the XLA path and the oracle's."""
    for fast, slow in zip(
        *(
            (out, *pull(gradient))
            for out, pull in (jax.vjp(lambda *x, path=path: run(path, *x), *inputs) for path in ("xla", "reference"))
        ),
        strict=True,
    ):
        np.testing.assert_allclose(fast, slow, atol=1e-5 * max(1, float(jnp.abs(slow).max())))


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("bias_heads", [None, 1, N])
def test_shared_key_heads_bias_and_dropout(rate, bias_heads):
    query, key, value, gradient = arrays((B, T, N, H), (B, M + T, G, H), (B, M + T, G, H), (B, T, N, H))
    bias = [] if bias_heads is None else arrays((1, bias_heads, T, M + T))

    def run(path, query, key, value, *bias):
        options = {"bias": bias[0] if bias else None, "dropout_rate": rate, "dropout_rng": jax.random.key(1)}
        return attend(query, key, value, Mask(causal=True, memory=M), path=path, **options)

    same(run, [query, key, value, *bias], gradient)


@pytest.mark.parametrize(("pattern", "rows"), [(Dense(), M + T), (Local(M), M + T), (Local(M), M), (Local(100), 100)])
def test_distances(pattern, rows):
    """Bands of queries leave out the keys before their window; rows of distances that are hidden may be missing."""
    shapes = [(B, T, N, H), (B, M + T, N, H), (B, M + T, N, H), (rows, N, H), (N, H), (N, H)]
    *inputs, gradient = arrays(*shapes, (B, T, N, H))
    mask = Mask(causal=True, memory=M, pattern=pattern)
    same(lambda path, *inputs: attend_relative(*inputs, mask, path=path), inputs, gradient)


def test_memory_does_not_grow_with_the_heads():
    def temporaries(heads):
        def loss(*inputs):
            return jnp.sum(attend(*inputs, Mask(causal=True), path="xla"))

        shape = jax.ShapeDtypeStruct((1, 1024, heads, H), jnp.float32)
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporaries(16) < 2 * temporaries(2)
