"""The smallest parts against formulas and literal values, and the spread of every parameter at the start."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs import hands_on, transformer_xl
from configs.common import decoder
from models.layers.dropout import dropout
from models.layers.embedding import rotate, sinusoid
from models.layers.norm import Norm
from models.transformer.mlp import ACTIVATIONS

PHI = [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in (-2.0, -0.5, 0.0, 1.0, 3.0)]
POINTS = np.array([-2.0, -0.5, 0.0, 1.0, 3.0])
EXPECTED = {
    "gelu_erf": POINTS * PHI,
    "gelu_tanh": 0.5 * POINTS * (1 + np.tanh(math.sqrt(2 / math.pi) * (POINTS + 0.044715 * POINTS**3))),
    "gelu_sigmoid": POINTS / (1 + np.exp(-1.702 * POINTS)),
    "relu": np.maximum(POINTS, 0),
    "silu": POINTS / (1 + np.exp(-POINTS)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(POINTS, jnp.float32)), EXPECTED[name], atol=1e-6)


def test_sinusoid_alternates():
    """Vaswani et al. 2017, section 3.5, by hand: width 4, so wavelengths 2 pi and 200 pi."""
    table = sinusoid(jnp.array([0, 1, 30]), 4)
    rows = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in (0, 1, 30)]
    np.testing.assert_allclose(table, rows, atol=1e-6)


def test_rotation_depends_on_distance_alone():
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def product(i, j):
        return float(jnp.vdot(rotate(query, jnp.array([[i]])), rotate(key, jnp.array([[j]]))))

    assert product(9, 4) == pytest.approx(product(105, 100), abs=1e-4)
    assert product(9, 4) != pytest.approx(product(9, 5), abs=1e-2)
    assert product(0, 0) == pytest.approx(float(jnp.vdot(query, key)), abs=1e-6)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_of_bfloat16_is_computed_in_float32(kind):
    """Mean 64, deviation 0.5: in bfloat16 (8 bits) the variance would be lost altogether."""
    x = (64 + 0.5 * jax.random.normal(jax.random.key(0), (4, 256))).astype(jnp.bfloat16)
    module = Norm(kind, 1e-5, "bfloat16", "float32")
    y = module.apply(nn.unbox(module.init(jax.random.key(0), x)), x)
    assert y.dtype == jnp.bfloat16
    exact = np.asarray(x, np.float64)
    if kind == "layer":
        exact = exact - exact.mean(-1, keepdims=True)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, rtol=2**-8, atol=1e-5)


def test_dropout_keeps_the_mean():
    x = jnp.ones((100_000,))
    y = dropout(x, 0.3, jax.random.key(0))
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.7)}
    assert float((y == 0).mean()) == pytest.approx(0.3, abs=0.006)  # 4 standard errors
    assert dropout(x, 0.3, None) is x and dropout(x, 0.0, jax.random.key(0)) is x


@pytest.mark.parametrize("site", ["embedding", "attention", "residual", "ff"])
def test_each_dropout_rate_has_its_site(small, site):
    model, params = small(**{f"dropout_{site}": 0.5})
    tokens = jnp.array([[1, 2, 3, 4]])

    @jax.jit
    def run(key):
        return model.apply(params, tokens, train=True, rngs={"dropout": key}).hidden

    quiet = model.apply(params, tokens).hidden
    first, second = run(jax.random.key(0)), run(jax.random.key(1))
    assert np.isfinite(first).all()
    assert np.abs(first - second).max() > 1e-2 and np.abs(first - quiet).max() > 1e-2


@pytest.mark.parametrize("scaled", [True, False])
def test_spread_at_the_start(scaled):
    """Residual output matrices start 1/sqrt(2L) smaller (GPT-2); a name that matches nothing would show here."""
    fields = decoder()
    fields.update(vocab_size=1000, context=500, layers=8, width=64, heads=4, ff=256, dtype="float32", tied_head=False)
    fields.update(scale_residual_init=scaled)
    model = models.build(fields.to_dict())
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    layers = params["layers"]
    small = 0.02 / math.sqrt(16) if scaled else 0.02
    expected = [
        (params["tokens"], 0.02),
        (params["head"], 0.02),
        (params["positions"], 0.01),
        *((layers["attention"][name]["kernel"], 0.02) for name in ("query", "key", "value")),
        (layers["attention"]["output"]["kernel"], small),
        (layers["feed_forward"]["in"]["kernel"], 0.02),
        (layers["feed_forward"]["out"]["kernel"], small),
    ]
    for array, std in expected:
        assert float(array.std()) == pytest.approx(std, rel=0.02)  # 32,000 draws or more: 4 standard errors are 1.6 %
        assert abs(float(array.mean())) < 0.04 * std
    matrices = {id(array) for array, _ in expected}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if id(leaf) not in matrices:
            np.testing.assert_array_equal(leaf, 1.0 if path[-1].key == "scale" else 0.0)
    first, second = layers["attention"]["query"]["kernel"][:2]
    assert np.abs(first - second).max() > 0.01, "layers must be drawn apart"


def start(recipe, **changes):
    """Initial parameters of a recipe's model, two layers deep, without axis names."""
    config = recipe.get_config()
    config.model.update(layers=2, **changes)
    model = models.build(config.model.to_dict())
    init = jax.jit(model.init)
    return jax.tree.map(np.asarray, nn.unbox(init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"])


def test_the_hands_on_model_starts_as_the_tutorials():
    """One loop draws all linear layers, tables and norms' gains from N(0, .02) and passes over the fused projection."""
    params = start(hands_on)
    layers, bound = params["layers"], math.sqrt(6 / (410 + 3 * 410))
    for name in ("query", "key", "value"):
        kernel = layers["attention"][name]["kernel"]
        assert bound * 0.999 < np.abs(kernel).max() <= bound
        assert kernel.std() == pytest.approx(bound / math.sqrt(3), rel=0.01)
        assert not layers["attention"][name]["bias"].any()
    drawn = [layers["attention"]["output"]["kernel"], params["tokens"], params["positions"]]
    drawn += [layers["feed_forward"][name]["kernel"] for name in ("in", "out")]
    drawn += [layers[name]["scale"] for name in ("attention_norm", "feed_forward_norm")]
    for array in drawn:
        assert array.std() == pytest.approx(0.02, rel=4 / math.sqrt(2 * array.size))  # four standard errors
        assert abs(array.mean()) < 4 * 0.02 / math.sqrt(array.size)


def test_transformer_xls_gains_start_around_one():
    layers = start(transformer_xl, width=1024)["layers"]
    for name in ("attention_norm", "feed_forward_norm"):
        gains = layers[name]["scale"]
        assert gains.mean() == pytest.approx(1, abs=4 * 0.02 / math.sqrt(gains.size))
        assert gains.std() == pytest.approx(0.02, rel=4 / math.sqrt(2 * gains.size))
