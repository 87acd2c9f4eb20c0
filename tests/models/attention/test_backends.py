"""Every path equals the oracle, in values and gradients, on every kind of mask that it supports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import Local, parse_pattern
from tests.models.attention.conftest import MASKS, SPARSE, M, T, arrays, with_gradients

DENSE_PATHS = ("xla", "chunked")


def test_the_oracle_is_softmax():
    """Two queries, two keys, by hand: scores (0, ln 3) give weights (1/4, 3/4); a query alone takes its key's value."""
    query, key = jnp.array([[[[1.0]], [[1.0]]]]), jnp.array([[[[0.0]], [[np.log(3.0)]]]])
    value = jnp.array([[[[8.0]], [[4.0]]]])
    out = attend(query, key, value, Mask(causal=True), backend="reference")
    np.testing.assert_allclose(out[0, :, 0, 0], [8.0, 5.0], rtol=1e-6)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("path", DENSE_PATHS)
def test_dense_paths(agree, path, name):
    mask, keys = MASKS[name]
    agree(path, mask, arrays(keys))


@pytest.mark.parametrize("shape", [(1, 4), (2, 1), (2, 4)])
@pytest.mark.parametrize("path", DENSE_PATHS)
def test_bias(agree, path, shape):
    bias = jnp.asarray(np.random.default_rng(2).normal(size=(*shape, T, T + M)), jnp.float32)
    agree(path, MASKS["memory"][0], arrays(T + M), bias=bias)


@pytest.mark.parametrize("pattern", SPARSE)
@pytest.mark.parametrize(
    "extra",
    ["causal segments", "bidirectional", *(pytest.param(e, marks=pytest.mark.slow) for e in ("causal", "segments"))],
)
def test_sparse_path(agree, pattern, extra):
    agree("sparse", MASKS[extra][0].replace(pattern=parse_pattern(pattern)), arrays())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pattern", ["strided_16", "fixed_16_4"])
def test_sparse_path_with_padded_keys(agree, pattern, causal):
    valid = jnp.arange(T)[None, :] < jnp.array([[T], [95]])
    agree("sparse", Mask(causal=causal, pattern=parse_pattern(pattern), key_valid=valid), arrays())


@pytest.mark.parametrize(("length", "causal"), [(1, True), (33, True), (33, False)])
@pytest.mark.parametrize("pattern", ["strided_8", "fixed_8_3"])
def test_sparse_path_with_rows_that_fill_no_block(agree, pattern, length, causal):
    agree("sparse", Mask(causal=causal, pattern=parse_pattern(pattern)), arrays(length, rows=length))


@pytest.mark.parametrize("pattern", ["strided_16", "fixed_16_4", "local_128"])
def test_sparse_path_both_ways_grows_as_the_root(pattern):
    """Work and memory of four times the tokens, with blocks twice as long: 8 times as much, where dense has 16."""

    def measured(length, word):
        shape = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
        mask = Mask(pattern=parse_pattern(word))
        run = jax.grad(lambda *qkv: attend(*qkv, mask, backend="sparse").sum(), argnums=(0, 1, 2))
        program = jax.jit(run).lower(shape, shape, shape).compile()
        return program.cost_analysis()["flops"], program.memory_analysis().temp_size_in_bytes

    name, *sizes = pattern.split("_")
    small, large = ("_".join([name, str(times * int(sizes[0])), *sizes[1:]]) for times in (8, 16))
    grown = [b / a for a, b in zip(measured(4096, small), measured(16384, large), strict=True)]
    assert max(grown) < 8.5, grown


@pytest.mark.parametrize("path", DENSE_PATHS)
def test_cross_attention_between_documents(agree, path):
    """Targets of a packed row look at the inputs of their own example; padding is no example's."""
    queries = jnp.array([[1] * 50 + [2] * 90 + [0] * (T - 140), [1] * 30 + [2] * (T - 30)])
    keys = jnp.array([[1] * 20 + [2] * 60 + [0] * 10, [2] * 80 + [1] * 10])
    agree(path, Mask(query_segments=queries, key_segments=keys), arrays(90))


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_longer_than_the_row_is_dense(causal):
    given = arrays()
    dense, local = (
        with_gradients(path, Mask(causal=causal, pattern=parse_pattern(word)), *given)
        for path, word in (("reference", "dense"), ("sparse", "local_512"))
    )
    for a, b in zip(dense, local, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("pattern", ["strided_16+dense", "summary_16_8_by_head"])
@pytest.mark.parametrize("path", ["auto", "xla"])
def test_heads_of_several_patterns(agree, path, pattern):
    agree(
        path,
        Mask(causal=True, pattern=parse_pattern(pattern)),
        arrays(),
        dropout_rate=0.1,
        dropout_rng=jax.random.key(3),
    )


@pytest.mark.parametrize(("path", "pattern"), [("xla", "dense"), ("chunked", "dense"), ("sparse", "fixed_16_4")])
def test_dropout_draws_the_same_bits_on_every_path(agree, path, pattern):
    mask = Mask(causal=True, pattern=parse_pattern(pattern))
    agree(path, mask, arrays(), dropout_rate=0.3, dropout_rng=jax.random.key(3))


def test_dropout_drops_its_rate_and_keeps_the_mean():
    identity = jnp.broadcast_to(jnp.eye(64)[None, :, None, :], (4, 64, 4, 64))
    out = attend(
        jnp.zeros_like(identity),
        jnp.zeros_like(identity),
        identity,
        Mask(),
        dropout_rate=0.25,
        dropout_rng=jax.random.key(0),
    )
    dropped = np.asarray(out == 0)  # the output is the weights themselves, 1/64 each before dropout
    np.testing.assert_allclose(out[~dropped], 1 / 64 / 0.75, rtol=1e-5)
    # The mean of n draws has a standard deviation of sqrt(3/16/n): 0.0017 of all 65,536, 0.108 of the 16 of one pair
    assert abs(dropped.mean() - 0.25) < 0.007
    assert 0.09 < dropped.mean((0, 2)).std() < 0.13


@pytest.mark.parametrize(("path", "pattern"), [("xla", "dense"), ("chunked", "dense"), ("sparse", "fixed_16_4")])
def test_bfloat16(agree, path, pattern):
    # 8 bits of mantissa: products of rounded weights and values differ by some 2^-8 of the largest
    mask = Mask(causal=True, pattern=parse_pattern(pattern))
    agree(path, mask, arrays(dtype=jnp.bfloat16), tolerance=2e-2)


@pytest.mark.parametrize("path", ["reference", *DENSE_PATHS, "sparse"])
def test_blind_queries_get_zeros_and_give_no_gradient(path):
    pattern = "local_16" if path == "sparse" else "dense"
    mask = MASKS["causal segments"][0].replace(pattern=parse_pattern(pattern))
    out, *gradients = with_gradients(path, mask, *arrays())
    for array in (out, *gradients):
        assert (array[0, 140:] == 0).all()


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        *((path, "fixed_16_4") for path in ("reference", *DENSE_PATHS)),
        *(("sparse", word) for word in ("local_16", "column_16", "fixed_16_4_by_head")),
        ("auto", "dense+strided_16"),
    ],
)
def test_documents_never_leak(path, pattern):
    """Everything about document 2 changes; bit for bit nothing about document 1 does."""
    mask = MASKS["causal segments"][0].replace(pattern=parse_pattern(pattern))
    given = arrays()
    changed = [x.at[0, 50:140].add(100.0) for x in given]
    before, after = with_gradients(path, mask, *given), with_gradients(path, mask, *changed)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a[0, :50], b[0, :50])
        np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.parametrize(("path", "pattern"), [("xla", "dense"), ("chunked", "dense"), ("sparse", "fixed_16_4")])
def test_values_of_another_size(agree, path, pattern):
    query, key, _, _ = arrays()
    _, _, value, gradient = arrays(size=6)
    agree(path, Mask(causal=True, pattern=parse_pattern(pattern)), (query, key, value, gradient))


@pytest.mark.parametrize("path", [*DENSE_PATHS, "sparse"])
def test_scale(agree, path):
    agree(path, Mask(causal=True, pattern=Local(16)), arrays(), scale=0.3)
