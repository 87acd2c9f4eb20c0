"""Attention on eight devices equals attention on one: rows, heads and tokens split, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from configs.common import base
from models.attention import attend
from models.errors import ModelError
from models.masks import Mask
from models.patterns import parse_pattern

B, T, M, N = 4, 64, 32, 8


def mesh(data=1, fsdp=1, sequence=1, tensor=1):
    auto = (jax.sharding.AxisType.Auto,) * 4
    return jax.make_mesh((data, fsdp, sequence, tensor), ("data", "fsdp", "sequence", "tensor"), axis_types=auto)


def run(mask, path, sizes=None, bias=None, groups=N):
    rng = np.random.default_rng(0)
    shapes = [(B, T, N, 8), *[(B, T + mask.memory, groups, 8)] * 2, (B, T, N, 8)]
    query, key, value, gradient = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)

    @jax.jit
    def step(query, key, value, bias, gradient):
        def attended(query, key, value, bias):
            options = {"bias": bias, "path": path, "dropout_rate": 0.1, "dropout_rng": jax.random.key(5)}
            return attend(query, key, value, mask, **options)

        out, pull = jax.vjp(attended, query, key, value, bias)
        return out, pull(gradient)

    if sizes is None:
        return jax.tree.leaves(step(query, key, value, bias, gradient))
    with jax.set_mesh(mesh(**sizes)), nn.logical_axis_rules(base().mesh.rules):
        return jax.tree.leaves(step(query, key, value, bias, gradient))


SEGMENTS = jnp.array([[1] * 20 + [2] * 40 + [0] * 4, [1] * 64, [1] * 30 + [2] * 34, [3] * 64])
CASES = {
    "dense, tokens": ("xla", Mask(causal=True), {"sequence": 8}),
    "dense, tokens and heads": (
        "chunked",
        Mask(causal=True, query_segments=SEGMENTS),
        {"data": 2, "sequence": 2, "tensor": 2},
    ),
    "memory": ("xla", Mask(causal=True, memory=M), {"fsdp": 2, "sequence": 4}),
    "memory, same length": (
        "chunked",
        Mask(causal=True, memory=M, pattern=parse_pattern(f"local_{M}")),
        {"sequence": 4, "tensor": 2},
    ),
    "strided": (
        "sparse",
        Mask(causal=True, pattern=parse_pattern("strided_8"), query_segments=SEGMENTS),
        {"data": 4, "sequence": 2},
    ),
    "fixed": ("sparse", Mask(causal=True, pattern=parse_pattern("fixed_8_2")), {"sequence": 8}),
    "split heads": (
        "auto",
        Mask(causal=True, pattern=parse_pattern("summary_8_4_by_head")),
        {"data": 4, "sequence": 2},
    ),
    "rows alone": ("sparse", Mask(causal=True, pattern=parse_pattern("local_8")), {"data": 4, "tensor": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_eight_devices_equal_one(name):
    path, mask, sizes = CASES[name]
    for many, one in zip(run(mask, path, sizes), run(mask, path), strict=True):
        np.testing.assert_allclose(many, one, atol=1e-5)


def test_a_bias_is_split_with_its_heads():
    bias = jnp.asarray(np.random.default_rng(1).normal(size=(1, N, T, T)), jnp.float32)
    sizes = {"data": 2, "sequence": 2, "tensor": 2}
    for many, one in zip(run(Mask(), "xla", sizes, bias), run(Mask(), "xla", None, bias), strict=True):
        np.testing.assert_allclose(many, one, atol=1e-5)


def test_heads_that_cannot_be_traded_for_tokens():
    with pytest.raises(
        ModelError, match=r"2 attention kv_heads .* must be a multiple of 8; lower config.mesh.sequence"
    ):
        run(Mask(causal=True), "xla", {"sequence": 8}, groups=2)
