"""What `auto` picks, and what it says when a path is asked for what it cannot do."""

import sys

import jax
import jax.numpy as jnp
import pytest

from models.attention import attend, select_backends
from models.attention.kernels import gpu
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.errors import ModelError
from tests.models.attention.conftest import MASKS, M, T, arrays


def chosen(mask, rows=1024, keys=None, platform="cpu", dtype=jnp.bfloat16, **options):
    query = jax.ShapeDtypeStruct((1, rows, 4, 64), dtype)
    key = jax.ShapeDtypeStruct((1, keys or rows, 4, 64), dtype)
    return select_backends(query, key, key, mask, platform=platform, **options)


@pytest.mark.parametrize(
    ("expected", "mask", "options"),
    [
        ("xla", Mask(causal=True), {}),
        ("chunked", Mask(causal=True), {"rows": 4096}),
        ("xla", Mask(causal=True, offset=jnp.array(0)), {"rows": 1, "keys": 4096}),
        ("sparse", Mask(causal=True, pattern=parse_pattern("strided_32")), {}),
        ("sparse", Mask(pattern=parse_pattern("strided_32")), {}),
        ("sparse", Mask(pattern=parse_pattern("strided_32")), {"bias": jnp.zeros((1, 1, 1024, 1024))}),
        ("xla", Mask(pattern=parse_pattern("strided_32")), {"keys": 512}),
        ("cudnn", Mask(causal=True), {"platform": "gpu"}),
        ("xla", Mask(causal=True), {"platform": "gpu", "dtype": jnp.float32}),
        ("xla", Mask(causal=True), {"platform": "gpu", "dropout_rate": 0.1}),
        ("cudnn", Mask(causal=True, query_segments=jnp.ones((1, 1024))), {"platform": "gpu"}),
        ("cudnn", Mask(key_valid=jnp.ones((1, 512))), {"platform": "gpu", "keys": 512}),
        ("cudnn", Mask(causal=True, prefix=jnp.array([1])), {"platform": "gpu"}),
        ("triton", Mask(causal=True, query_segments=jnp.ones((1, 4096))), {"platform": "gpu", "rows": 4096}),
        ("chunked", Mask(causal=True, prefix=jnp.array([1])), {"platform": "gpu", "rows": 4096}),
        ("splash", Mask(causal=True), {"platform": "tpu"}),
        ("splash", Mask(causal=True, pattern=parse_pattern("local_256")), {"platform": "tpu"}),
        ("sparse", Mask(causal=True, pattern=parse_pattern("fixed_32_8")), {"platform": "tpu"}),
        ("splash", Mask(causal=True), {"platform": "tpu", "rows": 1000}),
        ("splash", Mask(causal=True, memory=1024, key_valid=jnp.ones((1, 2048))), {"platform": "tpu", "keys": 2048}),
        ("cudnn", Mask(causal=True, memory=1024, key_valid=jnp.ones((1, 2048))), {"platform": "gpu", "keys": 2048}),
        ("xla", Mask(causal=True), {"platform": "tpu", "rows": 64}),
    ],
)
def test_auto(expected, mask, options):
    assert chosen(mask, **options) == (expected,)


def test_the_platform_is_that_of_the_mesh():
    """A program that is compiled for hardware elsewhere takes the paths that it would take there."""
    device = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    assert chosen(Mask(causal=True), platform=None) == ("xla",)
    with jax.sharding.use_abstract_mesh(mesh):
        assert chosen(Mask(causal=True), platform=None) == ("splash",)


def test_one_choice_for_each_pattern_of_the_heads():
    assert chosen(Mask(causal=True, pattern=parse_pattern("dense+strided_32"))) == ("xla", "sparse")


@pytest.mark.parametrize(
    ("path", "mask", "reason"),
    [
        ("sparse", Mask(causal=True), "because the pattern is dense; use auto or one of: xla, chunked, reference"),
        (
            "sparse",
            Mask(causal=True, pattern=parse_pattern("strided_8"), offset=jnp.array(0)),
            "because it has no offset",
        ),
        ("sparse", MASKS["prefix"][0].replace(pattern=parse_pattern("strided_8")), "because it has no prefix"),
        ("cudnn", Mask(causal=True), "because it runs on GPUs and the platform is cpu"),
        ("splash", Mask(causal=True), "because it runs on TPUs and the platform is cpu"),
        (
            "flash",
            Mask(causal=True),
            "choose from: auto, splash, cudnn, triton, sparse, xla, chunked, reference",
        ),
    ],
)
def test_a_path_refuses_with_a_reason(path, mask, reason):
    query, key, value, _ = arrays(T + M if mask.offset is not None else T)
    with pytest.raises(ModelError, match=reason):
        attend(query, key, value, mask, backend=path)


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        (Mask(), {"dtype": jnp.float32}, "bfloat16 or float16, not float32"),
        (Mask(), {"dropout_rate": 0.1}, "it draws no dropout by the row"),
        (Mask(pattern=parse_pattern("local_8")), {}, "it is dense"),
        (Mask(key_valid=jnp.ones((1, 1023))), {"keys": 1023}, "1024 queries and 1023 keys"),
        (
            Mask(query_segments=jnp.ones((1, 1024))),
            {"bias": jnp.zeros((1, 1, 1024, 1024))},
            "an array of every row, head and pair",
        ),
    ],
)
def test_cudnn_refuses(mask, options, reason):
    with pytest.raises(ModelError, match=reason):
        chosen(mask, platform="gpu", backend="cudnn", **options)


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        (Mask(causal=True), {"bias": jnp.zeros((1, 1, 1024, 1024))}, "it has no bias"),
        (Mask(causal=True), {"dropout_rate": 0.1}, "it has no dropout"),
        (Mask(causal=True, prefix=jnp.array([1])), {}, "it has no prefix"),
        (Mask(pattern=parse_pattern("column_8")), {}, "dense and local patterns alone"),
    ],
)
def test_splash_refuses(mask, options, reason):
    with pytest.raises(ModelError, match=reason):
        chosen(mask, platform="tpu", backend="splash", **options)


@pytest.mark.parametrize(
    ("mask", "options", "reason"),
    [
        (Mask(), {"keys": 512}, "1024 queries and 512 keys are not"),
        (Mask(), {"bias": jnp.zeros((1, 1, 1024, 1024))}, "it has no bias"),
        (Mask(causal=True, prefix=jnp.array([1])), {}, "it has no prefix"),
        (Mask(query_segments=jnp.ones((1, 1024)), key_segments=jnp.ones((1, 1024))), {}, "it has no key_segments"),
    ],
)
def test_triton_refuses(mask, options, reason):
    with pytest.raises(ModelError, match=reason):
        chosen(mask, platform="gpu", backend="triton", **options)


def test_triton_may_go_from_jax(monkeypatch):
    """Which says so since 0.12, as a warning when the module is loaded."""
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.ops.gpu", None)
    gpu.triton_kernel.cache_clear()
    try:
        documents = Mask(causal=True, query_segments=jnp.ones((1, 4096)))
        assert chosen(documents, platform="gpu", rows=4096) == ("chunked",)
        with pytest.raises(ModelError, match="this version of JAX has it no more"):
            chosen(documents, platform="gpu", rows=4096, backend="triton")
    finally:
        gpu.triton_kernel.cache_clear()


@pytest.mark.parametrize("size", [60, 136])
@pytest.mark.parametrize("path", ["cudnn", "triton"])
def test_kernels_of_gpus_refuse_odd_head_sizes(path, size):
    array = jax.ShapeDtypeStruct((1, 128, 4, size), jnp.bfloat16)
    with pytest.raises(ModelError, match=f"a head size of {size}"):
        select_backends(array, array, array, Mask(), backend=path, platform="gpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 3}, "kv_heads must divide heads"),
        ({"bias": jnp.zeros((1, 3, T, T))}, "attention bias has shape"),
        ({"dropout_rate": 1.0}, "at least 0 and below 1"),
        ({"dropout_rate": 0.1}, "needs dropout_rng"),
    ],
)
def test_arguments_that_cannot_be(change, message):
    query, key, value, _ = arrays(groups=change.pop("groups", 2))
    with pytest.raises(ModelError, match=message):
        attend(query, key, value, Mask(), **change)


def test_shapes_that_do_not_fit():
    query, key, value, _ = arrays()
    with pytest.raises(ModelError, match=r"needs query \[B, T, N, H\]"):
        attend(query, key, value[:, :5], Mask())
