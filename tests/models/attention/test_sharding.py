"""Attention on eight devices equals attention on one: rows, heads and tokens split, values and gradients."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import PartitionSpec

from configs.common import base
from models.attention import api, attend
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.errors import ModelError

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
            options = {"bias": bias, "backend": path, "dropout_rate": 0.1, "dropout_rng": jax.random.key(5)}
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
    "rows that do not divide": ("xla", Mask(causal=True, query_segments=SEGMENTS), {"data": 8}),
    "rows that do not divide, heads": ("chunked", Mask(causal=True), {"data": 2, "fsdp": 4}),
    "heads alone": ("xla", Mask(causal=True, query_segments=SEGMENTS), {"tensor": 8}),
    "fully sharded": ("xla", Mask(causal=True, memory=M), {"fsdp": 4, "tensor": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_eight_devices_equal_one(name):
    path, mask, sizes = CASES[name]
    for many, one in zip(run(mask, path, sizes), run(mask, path), strict=True):
        np.testing.assert_allclose(many, one, atol=1e-5)


def test_where_nothing_divides_every_device_does_the_same():
    """One row of one token, as models are initialised and decode: replicated, and its gradient is counted once."""
    rng = np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.normal(size=(1, size, 3, 8)), jnp.float32) for size in (1, 5, 5))
    mask = Mask(causal=True, offset=jnp.asarray([3]))

    @jax.jit
    def step(query, key, value):
        out, pull = jax.vjp(lambda *inputs: attend(*inputs, mask, backend="xla"), query, key, value)
        return out, pull(jnp.sin(out))

    alone = jax.tree.leaves(step(query, key, value))
    with jax.set_mesh(mesh(data=2, sequence=2, tensor=2)), nn.logical_axis_rules(base().mesh.rules):
        many = jax.tree.leaves(step(query, key, value))
    for a, b in zip(many, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def by_region(mask, region):
    """Value and gradients of attention called where `region` has taken some axes of the mesh already."""
    rng = np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.normal(size=(B, T, N, 8)), jnp.float32) for _ in range(3))

    def local(query, key, value):
        out, pull = jax.vjp(lambda *inputs: attend(*inputs, mask, backend="xla"), query, key, value)
        return out, pull(jnp.sin(out))

    return jax.tree.leaves(region(local)(query, key, value))


@pytest.mark.parametrize("manual", [("data",), ("data", "fsdp", "sequence", "tensor")], ids=["some", "all"])
def test_inside_another_manual_region(manual):
    rows = PartitionSpec("data")

    def region(local):
        taken = {"in_specs": rows, "out_specs": rows, "axis_names": set(manual), "check_vma": False}
        return jax.jit(jax.shard_map(local, **taken))

    expected = by_region(Mask(causal=True), jax.jit)
    with jax.set_mesh(mesh(data=4, tensor=2)), nn.logical_axis_rules(base().mesh.rules):
        found = by_region(Mask(causal=True), region)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_inside_pmap():
    def region(local):
        def split(x):
            return x.reshape(4, B // 4, *x.shape[1:])

        def run(*inputs):
            return jax.tree.map(lambda x: x.reshape(B, *x.shape[2:]), jax.pmap(local)(*map(split, inputs)))

        return run

    for a, b in zip(by_region(Mask(causal=True), region), by_region(Mask(causal=True), jax.jit), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


LAYOUTS = ({"data": 8}, {"fsdp": 8}, {"tensor": 8}, {"sequence": 8}, {"data": 2, "fsdp": 2, "tensor": 2})


def lowered_for_cuda(path, mask, sizes, monkeypatch):
    """Attention's forward and backward pass lowered for GPUs that are not here."""
    monkeypatch.setattr(api, "_platform", lambda: "gpu")
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(fused_attention_stablehlo, "is_cuda_compute_capability_equal", lambda capability: False)
    rows = jax.ShapeDtypeStruct((8, T, N, 32), jnp.bfloat16)

    def step(query, key, value, mask, gradient):
        out, pull = jax.vjp(lambda *inputs: attend(*inputs, mask, backend=path), query, key, value)
        return out, pull(gradient)

    with jax.set_mesh(mesh(**sizes)), nn.logical_axis_rules(base().mesh.rules):
        program = jax.jit(step).trace(rows, rows, rows, mask, rows).lower(lowering_platforms=("cuda",)).as_text()
    assert "CustomSPMDPartitioning" not in program  # the kernel itself, not a partitioner that would have to split it
    return program


@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: "-".join(sizes))
def test_cudnn_is_called_directly(sizes, monkeypatch):
    program = lowered_for_cuda("cudnn", Mask(causal=True), sizes, monkeypatch)
    assert program.count("custom_call @__cudnn$fmhaSoftmax(") == 1
    assert program.count("custom_call @__cudnn$fmhaSoftmaxBackward(") == 1


def test_a_mask_is_an_array_to_cudnn_that_heads_share(monkeypatch):
    mask = Mask(causal=True, query_segments=jax.ShapeDtypeStruct((8, T), jnp.int32))
    program = lowered_for_cuda("cudnn", mask, {"data": 2, "fsdp": 2, "tensor": 2}, monkeypatch)
    calls = [line for line in program.splitlines() if "custom_call @__cudnn$fmhaScaleBiasSoftmax" in line]
    assert len(calls) == 2
    for call in calls:  # of 2 rows and 4 heads on each device
        assert f"tensor<2x{T}x4x32xbf16>" in call
        assert f"tensor<2x1x{T}x{T}xbf16>" in call
        assert f"tensor<2x4x{T}x{T}xbf16>" not in call


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")  # by JAX 0.12
def test_triton_is_called_directly(monkeypatch):
    with contextlib.suppress(ImportError):  # JAX 0.12 asks which GPU it is
        from jax._src.pallas.triton import gpu_info

        monkeypatch.setattr(gpu_info, "get_device_kind", lambda: "NVIDIA H100")
    mask = Mask(causal=True, query_segments=jax.ShapeDtypeStruct((8, T), jnp.int32))
    program = lowered_for_cuda("triton", mask, {"data": 2, "fsdp": 2, "tensor": 2}, monkeypatch)
    assert program.count("custom_call @__gpu$xla.gpu.triton") == 3  # forward, what softmax subtracts, gradients
    assert f"x{T}x{T}x" not in program


def test_a_bias_is_split_with_its_heads():
    bias = jnp.asarray(np.random.default_rng(1).normal(size=(1, N, T, T)), jnp.float32)
    sizes = {"data": 2, "sequence": 2, "tensor": 2}
    for many, one in zip(run(Mask(), "xla", sizes, bias), run(Mask(), "xla", None, bias), strict=True):
        np.testing.assert_allclose(many, one, atol=1e-5)


def test_heads_that_cannot_be_traded_for_tokens():
    with pytest.raises(ModelError):
        run(Mask(causal=True), "xla", {"sequence": 8}, groups=2)
