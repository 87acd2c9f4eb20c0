"""Products with weights whose axes lie in reverse are those of the weights as they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from models.layers.linear import TRANSPOSED, Linear
from models.layers.logits import FEW_ROWS, head_logits, vocab_logits


@pytest.mark.parametrize("rows", [(), (3,), (2, 5)], ids=str)
@pytest.mark.parametrize(
    ("inputs", "outputs"), [({"embed": 7}, {"heads": 3, "head_size": 5}), ({"a": 3, "b": 5}, {"c": 7})]
)
def test_a_linear_map(rows, inputs, outputs):
    linear = Linear(inputs, outputs, bias=True, std=0.5, dtype="float32", param_dtype="float32")
    x = jax.random.normal(jax.random.key(0), (*rows, *inputs.values()))
    params = nn.unbox(linear.init(jax.random.key(1), x))["params"]
    params["bias"] = jax.random.normal(jax.random.key(2), params["bias"].shape)
    turned = {TRANSPOSED: params["kernel"].T, "bias": params["bias"]}
    expected, found = (jax.jit(linear.apply)({"params": which}, x) for which in (params, turned))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("rows", [(1,), (3, 4), (FEW_ROWS + 1,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits(rows, dtype):
    hidden = jax.random.normal(jax.random.key(0), (*rows, 8)).astype(dtype)
    matrix, bias = jax.random.normal(jax.random.key(1), (13, 8)), jnp.arange(13.0)
    for b in (bias, None):
        expected, found = (jax.jit(logits)(hidden, matrix, b) for logits in (head_logits, vocab_logits))
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)
