"""However the layers are run, the numbers and the parameters are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import encoder

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 31, (2, 9)))


def value_and_gradient(model, params):
    def loss(params):
        hidden = model.apply(params, TOKENS, train=True, rngs={"dropout": jax.random.key(3)}).hidden
        return jnp.square(model.apply(params, hidden, method="logits")).mean()

    return jax.jit(jax.value_and_grad(loss))(params)


# Four layers of two patterns: two groups to scan. Dropout checks that randomness agrees as well.
DEPTH = {"layers": 4, "attention": ("dense", "local_3"), "dropout_attention": 0.1, "dropout_residual": 0.1}


def slow(*values):
    """A case that shows little more than its neighbours."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def unrolled():
    return {}


@pytest.mark.parametrize(
    ("scan", "remat"),
    [slow(True, "none"), (True, "full"), slow(True, "dots"), slow(True, "dots_no_batch"), slow(False, "full")],
)
def test_scan_and_remat_change_nothing(small, unrolled, scan, remat):
    if not unrolled:
        model, params = small(scan=False, remat="none", **DEPTH)
        unrolled["params"], unrolled["result"] = params, value_and_gradient(model, params)
    model, params = small(scan=scan, remat=remat, **DEPTH)
    assert jax.tree.structure(params) == jax.tree.structure(unrolled["params"])
    value, gradient = value_and_gradient(model, params)
    expected_value, expected_gradient = unrolled["result"]
    # The same float32 operations, fused differently: a few roundings. Some gradients (the key's bias) are 0 but for
    # rounding, so the scale is that of the whole tree.
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected_gradient))
    for got, expected in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6 * scale)


SHARED = {"layers": 4, "groups": 2, "attention": ("dense", "local_3"), "dropout": 0.1, "dropout_attention": 0.1}


def sharing(**changes):
    """A small encoder whose layers share their parameters in groups, or the like."""
    fields = encoder()
    fields.update(vocab_size=31, context=24, width=16, heads=4, ff=40, dtype="float32", init_std=0.3, **SHARED)
    fields.update(changes)
    return models.build(fields.to_dict())


@pytest.fixture(scope="module")
def apart():
    """(parameters of two groups, value and gradient by group) of four layers with copies of them."""
    shared, alone = sharing(), sharing(groups=0)
    params = nn.unbox(jax.jit(lambda key: shared.init(key, **shared.example()))(jax.random.key(0)))
    layers = params["params"]["layers"]
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(layers))
    copies = {"params": params["params"] | {"layers": jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), layers)}}
    value, gradient = value_and_gradient(alone, copies)
    summed = jax.tree.map(lambda g: g.reshape(2, 2, *g.shape[1:]).sum(1), gradient["params"]["layers"])
    return params, value, {"params": gradient["params"] | {"layers": summed}}


@pytest.mark.slow
@pytest.mark.parametrize(("scan", "remat"), [slow(True, "none"), slow(True, "full"), (False, "dots")])
def test_shared_layers_are_copies_whose_gradients_are_added(apart, scan, remat):
    """And each of them draws dropout of its own, as copies do."""
    params, expected_value, expected = apart
    value, gradient = value_and_gradient(sharing(scan=scan, remat=remat), params)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    assert jax.tree.structure(gradient) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6 * scale)


def test_remat_keeps_less_and_less(small):
    """Bytes kept for the backward pass fall from policy to policy, and each keeps what its name says."""

    def kept(remat):
        model, params = small(remat=remat, ff=39, layers=2)

        def residuals(params):
            return jax.vjp(lambda params: model.apply(params, TOKENS).hidden.sum(), params)[1]

        return [leaf for leaf in jax.tree.leaves(jax.eval_shape(residuals, params)) if leaf.shape[1:2] == (2,)]

    def hidden(leaves):  # feed-forward activations [L, B, T, F]
        return sum(leaf.shape[-1] == 39 for leaf in leaves)

    leaves = {remat: kept(remat) for remat in ("none", "dots", "dots_no_batch", "full")}
    assert [hidden(leaves[remat]) for remat in leaves] == [2, 1, 1, 0]  # none also keeps the activation's output
    sizes = [sum(leaf.size for leaf in leaves[remat]) for remat in leaves]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert [leaf.shape for leaf in leaves["full"]] == [(2, 2, 9, 16)]  # a layer's input and nothing else
