"""Optimisers against the formulas of their papers, computed in NumPy, and schedules against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from pretrain import optimizers
from pretrain.errors import UserError

L, D, F = 3, 6, 10


def params_and_gradients(steps=3):
    rng = np.random.default_rng(0)
    make = lambda: {  # noqa: E731
        "tokens": rng.normal(size=(8, D)).astype(np.float32),
        "layers": {"up": {"kernel": rng.normal(size=(L, D, F)), "bias": rng.normal(size=(L, F))}},
        "final_norm": {"scale": rng.normal(size=(D,))},
    }
    trees = [jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), make()) for _ in range(steps + 1)]
    return trees[0], trees[1:]


def run(params, gradients, **options):
    config = common.base()
    config.optimizer.update({"clip": 0.0, **options})
    config.schedule.update(kind="constant", warmup=0, peak=0.1)
    tx = optimizers.build(config.optimizer, config.schedule, 100)
    state = tx.init(params)
    for gradient in gradients:
        updates, state = tx.update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params


def leaves(tree):
    return {optimizers.path_name(p): np.asarray(x, np.float64) for p, x in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize("correction", [True, False])
def test_adamw_is_the_formula_and_spares_biases_and_gains(correction):
    params, gradients = params_and_gradients()
    b1, b2, eps, decay, rate = 0.8, 0.9, 1e-3, 0.2, 0.1
    got = leaves(run(params, gradients, b1=b1, b2=b2, epsilon=eps, weight_decay=decay, bias_correction=correction))
    for name, p in leaves(params).items():
        m = v = np.zeros_like(p)
        for t, g in enumerate((leaves(g)[name] for g in gradients), start=1):
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            scale = (1 - b1**t, 1 - b2**t) if correction else (1, 1)
            step = m / scale[0] / (np.sqrt(v / scale[1]) + eps)
            p = p - rate * (step + (decay * p if name in ("tokens", "layers/up/kernel") else 0))
        np.testing.assert_allclose(got[name], p, atol=2e-6, err_msg=name)


def test_decay_of_everything_decays_biases_too():
    params, gradients = params_and_gradients(1)
    zero = jax.tree.map(jnp.zeros_like, gradients[0])
    got = leaves(run(params, [zero], weight_decay=0.5, decay="all"))
    for name, p in leaves(params).items():
        np.testing.assert_allclose(got[name], p * (1 - 0.1 * 0.5), rtol=1e-6)


def test_lamb_has_a_trust_ratio_for_each_layer():
    params, gradients = params_and_gradients(1)
    b1, b2, eps, decay, rate = 0.9, 0.99, 1e-6, 0.1, 0.1
    got = leaves(
        run(params, gradients, name="lamb", b1=b1, b2=b2, epsilon=eps, weight_decay=decay, bias_correction=False)
    )
    p, g = leaves(params)["layers/up/kernel"], leaves(gradients[0])["layers/up/kernel"]
    for layer in range(L):
        u = (1 - b1) * g[layer] / (np.sqrt((1 - b2) * g[layer] ** 2) + eps) + decay * p[layer]
        expected = p[layer] - rate * np.linalg.norm(p[layer]) / np.linalg.norm(u) * u
        np.testing.assert_allclose(got["layers/up/kernel"][layer], expected, atol=1e-5)
    bias, bg = leaves(params)["layers/up/bias"], leaves(gradients[0])["layers/up/bias"]
    plain = bias - rate * (1 - b1) * bg / (np.sqrt((1 - b2) * bg**2) + eps)
    np.testing.assert_allclose(got["layers/up/bias"], plain, atol=1e-5)


def test_adafactor_treats_layers_apart_and_factors_large_matrices():
    """The order of operations of T5 (systems: factor, clip the update's RMS at 1, scale by RMS of the parameter)."""
    rng = np.random.default_rng(1)
    p, g = (rng.normal(size=(2, 128, 160)) * s for s in (0.05, 1.0))
    tree = lambda a: {"layers": {"kernel": jnp.asarray(a, jnp.float32)}}  # noqa: E731
    got = leaves(run(tree(p), [tree(g)], name="adafactor"))["layers/kernel"]
    for layer in range(2):
        square = g[layer] ** 2 + 1e-30
        v = np.outer(square.mean(1), square.mean(0)) / square.mean()
        u = g[layer] / np.sqrt(v)
        u /= max(1.0, np.sqrt((u**2).mean()))
        expected = p[layer] - 0.1 * max(1e-3, np.sqrt((p[layer] ** 2).mean())) * u
        np.testing.assert_allclose(got[layer], expected, atol=1e-6)


def test_muon_makes_each_layers_update_orthogonal():
    params, gradients = params_and_gradients(1)
    got = leaves(run(params, gradients, name="muon", b1=0.95))
    change = (got["layers/up/kernel"] - leaves(params)["layers/up/kernel"]) / 0.1
    for layer in range(L):
        values = np.linalg.svd(change[layer], compute_uv=False) / (0.2 * np.sqrt(F))
        assert values.min() > 0.6  # five Newton-Schulz steps bring singular values to within about .3 of 1
        assert values.max() < 1.4


def test_sgd_and_lion_are_their_formulas():
    params, gradients = params_and_gradients(2)
    name = "tokens"
    p, (g1, g2) = leaves(params)[name], [leaves(g)[name] for g in gradients]
    sgd = leaves(run(params, gradients, name="sgd", b1=0.5))[name]
    np.testing.assert_allclose(sgd, p - 0.1 * g1 - 0.1 * (g2 + 0.5 * g1), atol=1e-6)
    lion = leaves(run(params, gradients, name="lion", b1=0.9, b2=0.8))[name]
    expected = p - 0.1 * np.sign(g1) - 0.1 * np.sign(0.9 * 0.2 * g1 + 0.1 * g2)
    np.testing.assert_allclose(lion, expected, atol=1e-6)


def test_clipping_limits_the_global_norm():
    params, gradients = params_and_gradients(1)
    got = run(params, gradients, name="sgd", b1=0.0, clip=1.0)
    change = np.sqrt(sum(((leaves(got)[n] - p) ** 2).sum() for n, p in leaves(params).items()))
    np.testing.assert_allclose(change, 0.1, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "points"),
    [
        ({"kind": "constant"}, {0: 0.1, 4: 0.5, 9: 1.0, 50: 1.0, 99: 1.0}),
        ({"kind": "linear", "end": 0.0}, {4: 0.5, 10: 1.0, 55: 0.5, 100: 0.0, 200: 0.0}),
        ({"kind": "cosine", "end": 0.1}, {9: 1.0, 10: 1.0, 55: 0.55, 100: 0.1, 500: 0.1}),
        ({"kind": "rsqrt"}, {4: 0.5, 9: 1.0, 10: 1.0, 40: 0.5, 90: 1 / 3}),
        ({"kind": "linear", "end": 0.5, "decay_steps": 50}, {30: 0.75, 50: 0.5, 99: 0.5}),
    ],
)
def test_schedules(options, points):
    config = common.base()
    config.schedule.update(peak=1.0, warmup=10, **options)
    rate = optimizers.schedule(config.schedule, 100)
    for step, value in points.items():
        np.testing.assert_allclose(rate(step), value, rtol=1e-5, err_msg=str(step))


@pytest.mark.parametrize(
    ("section", "change", "words"),
    [
        ("optimizer", {"name": "adam"}, "did you mean 'adamw'"),
        ("optimizer", {"decay": "some"}, "choose one of: all, matrices"),
        ("schedule", {"kind": "cosinus"}, "did you mean 'cosine'"),
        ("schedule", {"kind": "linear", "warmup": 500}, "lower it or raise train.steps"),
    ],
)
def test_mistakes(section, change, words):
    config = common.base()
    config[section].update(change)
    with pytest.raises(UserError, match=words):
        optimizers.build(config.optimizer, config.schedule, 100)
