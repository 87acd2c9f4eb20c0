"""What the Sparse Transformer adds to the decoder: patterns, factorised positions, narrow queries, a start row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import decoder

SPARSE = {
    "attention": ("fixed_8_2_by_head", "strided_8", "column_4+local_8"),
    "layers": 3,
    "positions": "factorised",
    "position_axes": (4, 2, 3),
    "query_size": 2,
    "start_row": True,
    "tied_head": False,
    "activation": "gelu_sigmoid",
}


def tokens(length, seed=1):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 32, (2, length)))


@functools.partial(jax.jit, static_argnums=0)
def hidden(model, params, tokens):
    return model.apply(params, tokens).hidden


def test_paths_agree_through_the_whole_model(small):
    row = tokens(23)  # no whole number of blocks, of any of the patterns
    outputs = []
    for path in ("auto", "reference"):
        model, params = small(**SPARSE, attention_path=path)
        outputs.append(hidden(model, params, row))
    np.testing.assert_allclose(*outputs, atol=2e-5)  # three layers of float32 sums


def test_a_layer_sees_what_its_pattern_says(small):
    model, params = small(**SPARSE | {"layers": 1, "attention": ("column_4",)})
    row = tokens(24)
    before, after = hidden(model, params, row), hidden(model, params, row.at[:, 5].add(1) % 32)
    assert np.flatnonzero(np.abs(after - before).max((0, 2))).tolist() == [5, 9, 13, 17, 21]


def test_cached_decoding_equals_the_whole_row(small):
    model, params = small(**SPARSE)
    row = tokens(24)
    whole = hidden(model, params, row)
    carried = model.init_cache(2, 24)
    assert carried["attention"].key.shape[-1] == 2
    assert carried["attention"].value.shape[-1] == 4
    step = jax.jit(lambda params, tokens, carried: model.apply(params, tokens, carried=carried))
    for at in range(24):
        out = step(params, row[:, at : at + 1], carried)
        carried = out.carried
        np.testing.assert_allclose(out.hidden[:, 0], whole[:, at], atol=2e-5)


def test_positions_are_the_sum_of_a_row_for_each_axis(small):
    model, params = small(**SPARSE)
    p = params["params"]
    positions = jnp.array([[0, 1, 3, 6, 23]])
    found = model.apply(params, jnp.zeros((1, 5), jnp.int32), positions, method="_embed")
    for column, (row, middle, last) in enumerate([(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (3, 1, 2)]):
        expected = p["tokens"][0] + p["positions_0"][row] + p["positions_1"][middle] + p["positions_2"][last]
        np.testing.assert_allclose(found[0, column], expected, atol=1e-6)


def test_the_start_is_one_more_row_to_read_and_none_to_predict(small):
    model, params = small(**SPARSE)
    assert params["params"]["tokens"].shape == (32, 16)
    assert params["params"]["head"].shape == (31, 16)
    start, other = (hidden(model, params, tokens(24).at[:, 0].set(word)) for word in (31, 30))
    assert np.abs(start - other).max() > 0


def test_matrices_start_at_their_variance_and_the_head_at_zero():
    fields = decoder()
    fields.update(vocab_size=256, context=96, layers=8, width=128, heads=2, query_size=32, ff=256)
    fields.update(positions="factorised", position_axes=(4, 8, 3), tied_head=False, start_row=True)
    fields.update(init_std=0.01, init_gain=0.125, head_init_std=0.0, position_init_std=0.01 / 3**0.5)
    model = models.build(fields.to_dict())
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])
    std = jax.tree.map(lambda leaf: float(np.std(leaf)), params)
    layer = std["layers"]
    for name in ("query", "key", "value"):
        assert layer["attention"][name]["kernel"] == pytest.approx((0.125 / 128) ** 0.5, rel=0.03)
    residual = (0.5 / 8) ** 0.5
    assert layer["attention"]["output"]["kernel"] == pytest.approx((0.125 / 128) ** 0.5 * residual, rel=0.03)
    assert layer["feed_forward"]["in"]["kernel"] == pytest.approx((0.125 / 128) ** 0.5, rel=0.03)
    assert layer["feed_forward"]["out"]["kernel"] == pytest.approx((0.125 / 256) ** 0.5 * residual, rel=0.03)
    assert std["tokens"] == pytest.approx(0.01, rel=0.03)
    assert std["positions_1"] == pytest.approx(0.01 / 3**0.5, rel=0.1)
    assert std["head"] == 0
