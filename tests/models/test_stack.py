"""However the layers are run, the numbers and the parameters are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 31, (2, 9)))


def value_and_gradient(model, params):
    def loss(params):
        hidden = model.apply(params, TOKENS, train=True, rngs={"dropout": jax.random.key(3)}).hidden
        return jnp.square(model.apply(params, hidden, method="logits")).mean()

    return jax.jit(jax.value_and_grad(loss))(params)


# Three layers of two patterns: one group to scan and a rest to unroll. Dropout checks that randomness agrees as well.
DEPTH = {"layers": 3, "attention": ("dense", "local_3"), "dropout_attention": 0.1, "dropout_residual": 0.1}


@pytest.fixture(scope="module")
def unrolled():
    return {}


@pytest.mark.parametrize(
    ("scan", "remat"),
    [(True, "none"), (True, "full"), (True, "dots"), (True, "dots_no_batch"), (False, "full"), (False, "dots")],
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


@pytest.mark.parametrize(("policy", "kept"), [("none", True), ("full", False)])
def test_full_remat_keeps_no_matrix_product(small, policy, kept):
    """The backward pass finds a [B, T, ff] activation saved without remat, and must make it again with it."""
    model, params = small(remat=policy, ff=39)

    def loss(params):
        return model.apply(params, TOKENS).hidden.sum()

    saved = jax.eval_shape(lambda p: jax.vjp(loss, p)[1], params)
    assert any(leaf.shape[-1:] == (39,) and leaf.ndim == 4 for leaf in jax.tree.leaves(saved)) == kept
