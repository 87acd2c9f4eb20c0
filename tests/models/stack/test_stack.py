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


# Four layers of two patterns: two groups to scan. Dropout checks that randomness agrees as well.
DEPTH = {"layers": 4, "attention": ("dense", "local_3"), "dropout_attention": 0.1, "dropout_residual": 0.1}


@pytest.fixture(scope="module")
def unrolled():
    return {}


@pytest.mark.parametrize(
    ("scan", "remat"),
    [(True, "none"), (True, "full"), (True, "dots"), (True, "dots_no_batch"), (False, "full")],
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
