"""Described biases: what they say of each pair, by hand; and that every path adds the same, piece by piece."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention import attend
from models.attention.biases import ByBucket, Stored, Sum, bias_tile, bucket, full_bias
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.attention.relative import ByDistance
from tests.models.attention.conftest import MASKS, T, arrays

N = 4


def by_bucket(both_ways, buckets=32):
    table = jnp.asarray(np.random.default_rng(3).normal(size=(1, N, buckets)), jnp.float32)
    return ByBucket(table, both_ways, 128)


def by_distance(mask, keys):
    rng = np.random.default_rng(4)
    query, rows = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, N, T, 8), (1, N, keys + T, 8)))
    return ByDistance(query, rows if not mask.causal else rows[:, :, :keys], keys)


def test_buckets_of_both_directions():
    """The published function's values (Raffel et al. 2019), key's index minus the query's."""
    expected = {-128: 15, -64: 14, -32: 12, -16: 10, -8: 8, -7: 7, -1: 1, 0: 0}
    expected |= {1: 17, 7: 23, 8: 24, 12: 25, 16: 26, 32: 28, 64: 30, 100: 31, 10_000: 31}
    got = bucket(jnp.array(list(expected)), 32, 128, both_ways=True)
    np.testing.assert_array_equal(got, list(expected.values()))


def test_where_the_wide_buckets_begin():
    both = bucket(jnp.arange(0, -200, -1), 32, 128, both_ways=True)
    assert [int(np.argmax(both == one)) for one in range(8, 16)] == [8, 12, 16, 23, 32, 46, 64, 91]
    causal = bucket(jnp.arange(0, -200, -1), 32, 128, both_ways=False)
    starts = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert [int(np.argmax(causal == one)) for one in range(16, 32)] == starts
    np.testing.assert_array_equal(bucket(jnp.array([1, 5, 500]), 32, 128, both_ways=False), 0)


@pytest.mark.parametrize("name", ["bidirectional", "causal", "memory", "offset"])
def test_a_bucket_is_of_the_true_distance(name):
    """Against the formula, pair by pair; a query of a cache stands where its row has got to."""
    mask, keys = MASKS[name]
    bias = by_bucket(not mask.causal)
    got = full_bias(bias, mask, T, keys)
    at = np.arange(T)[None] + mask.memory + (0 if mask.offset is None else np.asarray(mask.offset)[:, None])
    ahead = np.arange(keys)[None, None] - at[:, :, None]
    expected = np.moveaxis(np.asarray(bias.table)[0][:, bucket(ahead, 32, 128, bias.both_ways)], 0, 1)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["bucket", "distance", "sum"])
@pytest.mark.parametrize("name", ["causal", "memory"])
def test_a_piece_is_a_piece_of_the_whole(name, kind):
    """Of a start that is known and of one that is not."""
    mask, keys = MASKS[name]
    bias = {"bucket": by_bucket(False), "distance": by_distance(mask, keys)}
    bias = bias.get(kind, Sum(tuple(bias.values())))
    start, rows, first, count = 32, 64, 16, mask.memory + 80
    seen = mask.tile(start, rows, first, count)
    expected = jnp.where(seen, full_bias(bias, mask, T, keys)[:, :, start : start + rows, first : first + count], 0)
    known = bias_tile(bias, mask, start, rows, first, count)
    own = bias.map_queries(lambda x: x[:, :, start : start + rows])
    traced = jax.jit(lambda start: own.tile(mask, start, rows, first, count))(start)
    for piece in (known, traced):
        np.testing.assert_allclose(jnp.where(seen, piece, 0), expected, atol=1e-5)  # sums of 8 products, up to 10


BIASED = ("bidirectional", "causal", "segments", "causal segments", "prefix", "memory half full", "offset")


# The sum has a bias by bucket.
@pytest.mark.parametrize("kind", [pytest.param("bucket", marks=pytest.mark.slow), "distance", "sum"])
@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize("path", ["xla", "chunked"])
def test_paths(agree, path, name, kind):
    mask, keys = MASKS[name]
    if kind == "distance" and mask.prefix is not None:
        mask = mask.replace(causal=False, prefix=None)  # rows of distances that reach into the future
    stored = jnp.asarray(np.random.default_rng(2).normal(size=(2, 1, T, keys)), jnp.float32)
    bias = {"bucket": by_bucket(not mask.causal), "distance": by_distance(mask, keys)}
    bias = bias.get(kind, Sum((Stored(stored), bias["bucket"])))
    agree(path, mask, arrays(keys), bias=bias)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bucket", "distance", "sum"])
@pytest.mark.parametrize("name", ["bidirectional", "causal segments"])
@pytest.mark.parametrize("pattern", ["local_128", "column_16", "strided_16", "fixed_16_4"])
def test_sparse_patterns(agree, pattern, name, kind):
    mask = MASKS[name][0].replace(pattern=parse_pattern(pattern))
    stored = jnp.asarray(np.random.default_rng(2).normal(size=(2, 1, T, T)), jnp.float32)
    bias = {"bucket": by_bucket(not mask.causal), "distance": by_distance(mask, T)}
    bias = bias.get(kind, Sum((Stored(stored), bias["bucket"])))
    agree("sparse", mask, arrays(), bias=bias)


@pytest.mark.parametrize("kind", ["bucket", "distance", "stored"])
@pytest.mark.parametrize("pattern", ["strided_8", "fixed_8_3"])
def test_sparse_rows_that_fill_no_block(agree, pattern, kind):
    rows = 33
    rng = np.random.default_rng(4)
    query, keys, stored = (
        jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((2, N, rows, 8), (1, N, 20, 8), (1, N, rows, rows))
    )
    bias = {"bucket": by_bucket(False), "distance": ByDistance(query, keys, 20), "stored": Stored(stored)}[kind]
    agree("sparse", Mask(causal=True, pattern=parse_pattern(pattern)), arrays(rows, rows=rows), bias=bias)


@pytest.mark.parametrize("path", ["xla", "chunked"])
def test_heads_of_several_patterns_and_dropout(agree, path):
    mask = Mask(pattern=parse_pattern("dense+local_16"))
    agree(path, mask, arrays(), bias=by_bucket(True), dropout_rate=0.2, dropout_rng=jax.random.key(3))


def test_in_blocks_no_bias_of_every_pair_is_made():
    """4 heads of 2,048 x 2,048 float32 would be 64 MiB."""
    query = jax.ShapeDtypeStruct((1, 2048, N, 8), jnp.float32)

    def loss(query, bias):
        return attend(query, query, query, Mask(), bias=bias, backend="chunked").sum()

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(query, by_bucket(True)).compile()
    assert program.memory_analysis().temp_size_in_bytes < 32 * 2**20
