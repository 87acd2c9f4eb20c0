"""Logits, chunks of tokens, and products with transposed weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from models.layers.linear import TRANSPOSED, Linear
from models.layers.logits import FEW_ROWS, head_logits, join_chunks, split_chunks, vocab_logits


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
def test_split_and_join_chunks(length, rows, turns, size):
    tokens = {"ids": jnp.arange(1, 1 + 2 * length).reshape(2, length), "hidden": jnp.ones((2, length, 3))}
    parts = split_chunks(tokens, rows)
    assert parts["ids"].shape == (turns, 2, size) and parts["hidden"].shape == (turns, 2, size, 3)
    assert int((parts["ids"] == 0).sum()) == 2 * (turns * size - length)
    back = join_chunks(parts, length)
    for name in tokens:
        np.testing.assert_array_equal(back[name], tokens[name])


@pytest.mark.parametrize("rows", [(), (3,), (2, 5)], ids=str)
@pytest.mark.parametrize(
    ("inputs", "outputs"), [({"embed": 7}, {"heads": 3, "head_size": 5}), ({"a": 3, "b": 5}, {"c": 7})]
)
def test_linear_with_transposed_kernel(rows, inputs, outputs):
    linear = Linear(inputs, outputs, bias=True, std=0.5, dtype="float32", param_dtype="float32")
    x = jax.random.normal(jax.random.key(0), (*rows, *inputs.values()))
    params = nn.unbox(linear.init(jax.random.key(1), x))["params"]
    params["bias"] = jax.random.normal(jax.random.key(2), params["bias"].shape)
    transposed = {TRANSPOSED: params["kernel"].T, "bias": params["bias"]}
    expected, found = (jax.jit(linear.apply)({"params": which}, x) for which in (params, transposed))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("rows", [(1,), (3, 4), (FEW_ROWS + 1,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vocab_logits_equal_head_logits(rows, dtype):
    hidden = jax.random.normal(jax.random.key(0), (*rows, 8)).astype(dtype)
    matrix, bias = jax.random.normal(jax.random.key(1), (13, 8)), jnp.arange(13.0)
    for b in (bias, None):
        expected, found = (jax.jit(logits)(hidden, matrix, b) for logits in (head_logits, vocab_logits))
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)
