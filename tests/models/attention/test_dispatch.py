"""Which backend `auto` selects, and which requests each backend refuses."""

import jax
import jax.numpy as jnp
import pytest

from models.attention import BACKENDS, select_backends
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.errors import ModelError

ONES = jnp.ones((1, 1024))
BIAS = jnp.zeros((1, 1, 1024, 1024))
PREFIX = Mask(causal=True, prefix=jnp.array([1]))
STRIDED = parse_pattern("strided_32")


def select(mask, rows=1024, keys=None, platform="cpu", dtype=jnp.bfloat16, size=64, **options):
    query = jax.ShapeDtypeStruct((1, rows, 4, size), dtype)
    key = jax.ShapeDtypeStruct((1, keys or rows, 4, size), dtype)
    return select_backends(query, key, key, mask, platform=platform, **options)


@pytest.mark.parametrize(
    ("expected", "mask", "options"),
    [
        ("xla", Mask(causal=True), {}),
        ("chunked", Mask(causal=True), {"rows": 4096}),
        ("xla", Mask(causal=True, offset=jnp.array(0)), {"rows": 1, "keys": 4096}),
        ("sparse", Mask(causal=True, pattern=STRIDED), {}),
        ("sparse", Mask(pattern=STRIDED), {}),
        ("sparse", Mask(pattern=STRIDED), {"bias": BIAS}),
        ("xla", Mask(pattern=STRIDED), {"keys": 512}),
        ("cudnn", Mask(causal=True), {"platform": "gpu"}),
        ("xla", Mask(causal=True), {"platform": "gpu", "dtype": jnp.float32}),
        ("xla", Mask(causal=True), {"platform": "gpu", "dropout_rate": 0.1}),
        ("cudnn", Mask(causal=True, query_segments=ONES), {"platform": "gpu"}),
        ("cudnn", Mask(key_valid=jnp.ones((1, 512))), {"platform": "gpu", "keys": 512}),
        ("cudnn", PREFIX, {"platform": "gpu"}),
        ("triton", Mask(causal=True, query_segments=jnp.ones((1, 4096))), {"platform": "gpu", "rows": 4096}),
        ("chunked", PREFIX, {"platform": "gpu", "rows": 4096}),
        ("splash", Mask(causal=True), {"platform": "tpu"}),
        ("splash", Mask(causal=True, pattern=parse_pattern("local_256")), {"platform": "tpu"}),
        ("sparse", Mask(causal=True, pattern=parse_pattern("fixed_32_8")), {"platform": "tpu"}),
        ("splash", Mask(causal=True), {"platform": "tpu", "rows": 1000}),
        ("splash", Mask(causal=True, memory=1024, key_valid=jnp.ones((1, 2048))), {"platform": "tpu", "keys": 2048}),
        ("cudnn", Mask(causal=True, memory=1024, key_valid=jnp.ones((1, 2048))), {"platform": "gpu", "keys": 2048}),
        ("xla", Mask(causal=True), {"platform": "tpu", "rows": 64}),
    ],
)
def test_select_auto(expected, mask, options):
    assert select(mask, **options) == (expected,)


def test_select_uses_the_platform_of_the_mesh():
    device = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    assert select(Mask(causal=True), platform=None) == ("xla",)
    with jax.sharding.use_abstract_mesh(mesh):
        assert select(Mask(causal=True), platform=None) == ("splash",)


def test_select_once_for_each_pattern_of_the_heads():
    assert select(Mask(causal=True, pattern=parse_pattern("dense+strided_32"))) == ("xla", "sparse")


@pytest.mark.parametrize(
    ("backend", "mask", "options"),
    [
        ("sparse", Mask(causal=True), {}),
        ("sparse", Mask(causal=True, pattern=STRIDED, offset=jnp.array(0)), {}),
        ("sparse", PREFIX.replace(pattern=STRIDED), {}),
        ("cudnn", Mask(), {"platform": "cpu"}),
        ("cudnn", Mask(), {"dtype": jnp.float32}),
        ("cudnn", Mask(), {"dropout_rate": 0.1}),
        ("cudnn", Mask(), {"size": 60}),
        ("cudnn", Mask(), {"size": 136}),
        ("cudnn", Mask(pattern=parse_pattern("local_8")), {}),
        ("cudnn", Mask(key_valid=jnp.ones((1, 1023))), {"keys": 1023}),
        ("cudnn", Mask(query_segments=ONES), {"bias": BIAS}),
        ("triton", Mask(), {"size": 60}),
        ("triton", Mask(), {"keys": 512}),
        ("triton", Mask(), {"bias": BIAS}),
        ("triton", PREFIX, {}),
        ("triton", Mask(query_segments=ONES, key_segments=ONES), {}),
        ("splash", Mask(causal=True), {"platform": "cpu"}),
        ("splash", Mask(causal=True), {"platform": "tpu", "bias": BIAS}),
        ("splash", Mask(causal=True), {"platform": "tpu", "dropout_rate": 0.1}),
        ("splash", PREFIX, {"platform": "tpu"}),
        ("splash", Mask(pattern=parse_pattern("column_8")), {"platform": "tpu"}),
    ],
)
def test_select_refuses(backend, mask, options):
    with pytest.raises(ModelError):
        select(mask, backend=backend, **{"platform": "gpu"} | options)


def test_refusals_name_backends_that_support_the_request():
    with pytest.raises(ModelError, match="xla, chunked, reference"):
        select(Mask(causal=True), backend="sparse")
    assert list(BACKENDS) == ["splash", "cudnn", "triton", "sparse", "xla", "chunked", "reference"]
