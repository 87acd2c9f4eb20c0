"""The kernels of accelerators that are not here, interpreted or as XLA computes them, equal the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention.backend import REFERENCE
from models.attention.kernels import gpu, splash
from models.attention.masks import Mask
from models.attention.patterns import Local, parse_pattern
from tests.models.attention.conftest import MASKS, arrays

SCALE = 0.125
interpreted_splash = functools.partial(splash.run, interpret=True)
interpreted_triton = functools.partial(gpu.run_triton, interpret=True)
cudnn_by_xla = functools.partial(gpu.run_cudnn, implementation="xla")

DOCUMENTS = jnp.array([[1] * 60 + [2] * 50 + [0] * 18, [1] * 128])
RAGGED = jnp.array([[1] * 60 + [2] * 30 + [0] * 10, [1] * 100])
HALF_FULL = jnp.arange(256)[None, :] >= jnp.array([[100], [128]])
OTHERS = jnp.array([[1] * 60 + [3] * 50 + [0] * 40, [1] * 150])  # of document 2 there is no key


def run(path, mask, given, bias=None):
    query, key, value, gradient = given
    out, pull = jax.vjp(lambda *inputs: path(*inputs[:3], mask, inputs[3], None, SCALE), query, key, value, bias)
    return out, *jax.tree.leaves(pull(gradient))


def check(path, mask, given, bias=None):
    for a, b in zip(run(path, mask, given, bias), run(REFERENCE.run, mask, given, bias), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


SPLASHED = {
    "causal": Mask(causal=True),
    "segments": Mask(causal=True, query_segments=DOCUMENTS),
    "memory": Mask(causal=True, memory=128),
    "memory half full": Mask(causal=True, memory=128, key_valid=HALF_FULL),
    "same length": Mask(causal=True, memory=128, pattern=Local(128)),
    "local": Mask(causal=True, pattern=Local(30)),
    "bidirectional": Mask(),
    "bidirectional local": Mask(pattern=Local(30)),
    "bidirectional segments": Mask(query_segments=DOCUMENTS),
    "segments and padded keys": Mask(causal=True, query_segments=DOCUMENTS, key_valid=HALF_FULL[:, 80:208]),
}


@pytest.mark.parametrize("name", SPLASHED)
def test_splash(name):
    mask = SPLASHED[name]
    check(interpreted_splash, mask, arrays(128 + mask.memory, rows=128, size=64))


@pytest.mark.parametrize(
    ("mask", "rows", "keys", "size"),
    [
        (Mask(causal=True), 100, 100, 40),
        (Mask(), 100, 100, 64),
        (Mask(pattern=Local(30)), 100, 100, 64),
        (Mask(causal=True, memory=30), 100, 130, 64),
        (Mask(query_segments=RAGGED, key_segments=OTHERS), 100, 150, 64),
    ],
    ids=["causal, odd heads", "bidirectional", "bidirectional local", "memory", "cross"],
)
def test_splash_of_rows_and_heads_that_fill_no_block(mask, rows, keys, size):
    check(interpreted_splash, mask, arrays(keys, rows=rows, size=size))


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_triton(causal, segments):
    mask = Mask(causal=causal, query_segments=RAGGED if segments else None)
    check(interpreted_triton, mask, arrays(100, rows=100, size=24))


@pytest.mark.parametrize("name", MASKS)
def test_cudnn(name):
    mask, keys = MASKS[name]
    check(cudnn_by_xla, mask, arrays(keys))


def test_cudnn_across_documents():
    check(cudnn_by_xla, Mask(query_segments=RAGGED, key_segments=OTHERS), arrays(150, rows=100))


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        (interpreted_splash, "dense"),
        (interpreted_splash, "local_30"),
        (interpreted_triton, "dense"),
        (cudnn_by_xla, "dense"),
    ],
    ids=["splash", "splash local", "triton", "cudnn"],
)
def test_documents_never_leak(path, pattern):
    mask = SPLASHED["segments"].replace(pattern=parse_pattern(pattern))
    given = arrays(128, rows=128, size=64)
    changed = [x.at[0, 60:110].add(100.0) for x in given]
    for before, after in zip(run(path, mask, given), run(path, mask, changed), strict=True):
        np.testing.assert_array_equal(before[0, :60], after[0, :60])
        np.testing.assert_array_equal(before[1], after[1])
