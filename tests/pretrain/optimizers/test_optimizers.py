"""Optimisers against the formulas of their papers, computed in NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from named import leaves, named, run

from configs import common
from pretrain import optimizers
from pretrain.errors import UserError
from pretrain.optimizers.transforms import where

L, D, F = 3, 6, 10


def params_and_gradients(steps=3):
    rng = np.random.default_rng(0)

    def make():
        return {
            "tokens": rng.normal(size=(8, D)).astype(np.float32),
            "layers": {"up": {"kernel": rng.normal(size=(L, D, F)), "bias": rng.normal(size=(L, F))}},
            "final_norm": {"scale": rng.normal(size=(D,))},
        }

    trees = [jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), make()) for _ in range(steps + 1)]
    return trees[0], trees[1:]


@pytest.mark.parametrize("correction", [True, False])
def test_adamw_formula(correction):
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


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_bad_update_changes_no_state(name):
    params, gradients = params_and_gradients(1)
    config = common.base()
    config.optimizer.update(name=name)
    tx = optimizers.build(config.optimizer, config.schedule, 100, named(params))
    update = jax.jit(lambda gradient, state, good: tx.update(gradient, state, params, good=good)[1])
    before = update(gradients[0], tx.init(params), True)
    after = update(jax.tree.map(lambda g: jnp.full_like(g, np.nan), gradients[0]), before, False)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    changed = update(gradients[0], before, True)
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, before, changed)))


def test_adam_moments_are_updated_in_place():
    """No array is copied: copies of both averages would take the memory of the parameters twice, and a pass each."""
    params, (gradient,) = params_and_gradients(1)
    config = common.base()
    tx = optimizers.build(config.optimizer, config.schedule, 100, named(params))

    def update(params, state, gradient):
        good = jnp.isfinite(optax.tree.norm(gradient))
        updates, state = tx.update(gradient, state, params, good=good)
        return where(good, optax.apply_updates(params, updates), params), state

    compiled = jax.jit(update, donate_argnums=(0, 1)).lower(params, tx.init(params), gradient).compile().as_text()
    assert "input_output_alias" in compiled
    assert re.findall(r"= f32\[\d\S* copy\(", compiled) == []


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_state_of_bfloat16_parameters_is_float32(name):
    """All is as with the same numbers in float32, but for how the parameters are stored."""
    params, (gradient,) = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params_and_gradients(1))
    config = common.base()
    config.optimizer.update(name=name, weight_decay=0.1)
    tx = optimizers.build(config.optimizer, config.schedule, 100, named(params))
    stored = tx.update(gradient, tx.init(params), params)
    params, gradient = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, gradient))
    wide = tx.update(gradient, tx.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, stored, wide)
    assert {leaf.dtype for leaf in jax.tree.leaves(stored)} <= {jnp.dtype(kind) for kind in ("float32", "int32")}


def test_decay_all():
    params, gradients = params_and_gradients(1)
    zero = jax.tree.map(jnp.zeros_like, gradients[0])
    got = leaves(run(params, [zero], weight_decay=0.5, decay="all"))
    for name, p in leaves(params).items():
        np.testing.assert_allclose(got[name], p * (1 - 0.1 * 0.5), rtol=1e-6)


def test_lamb_trust_ratio_by_layer():
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


@pytest.mark.parametrize("name", ["adafactor", "lamb", "muon"])
def test_stacks_of_different_depth(name):
    """An encoder of three layers, and of them the first two as a decoder."""
    params, gradients = params_and_gradients(2)

    def cut(tree):
        return {"layers": jax.tree.map(lambda leaf: leaf[:2], tree["layers"])}

    def both(tree):
        return {"encoder": tree, "decoder": cut(tree)}

    options = {"name": name, "b1": 0.9, "b2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}
    together = run(both(params), [both(gradient) for gradient in gradients], **options)
    apart = both(run(params, gradients, **options))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), together, apart)


def test_muon_update_is_orthogonal():
    params, gradients = params_and_gradients(1)
    got = leaves(run(params, gradients, name="muon", b1=0.95))
    change = (got["layers/up/kernel"] - leaves(params)["layers/up/kernel"]) / 0.1
    for layer in range(L):
        values = np.linalg.svd(change[layer], compute_uv=False) / (0.2 * np.sqrt(F))
        assert values.min() > 0.6  # five Newton-Schulz steps bring singular values to within about .3 of 1
        assert values.max() < 1.4


def test_sgd_and_lion_formulas():
    params, gradients = params_and_gradients(2)
    name = "tokens"
    p, (g1, g2) = leaves(params)[name], [leaves(g)[name] for g in gradients]
    sgd = leaves(run(params, gradients, name="sgd", b1=0.5))[name]
    np.testing.assert_allclose(sgd, p - 0.1 * g1 - 0.1 * (g2 + 0.5 * g1), atol=1e-6)
    lion = leaves(run(params, gradients, name="lion", b1=0.9, b2=0.8))[name]
    expected = p - 0.1 * np.sign(g1) - 0.1 * np.sign(0.9 * 0.2 * g1 + 0.1 * g2)
    np.testing.assert_allclose(lion, expected, atol=1e-6)


def test_adagrad_formula():
    params, gradients = params_and_gradients(3)
    got = leaves(run(params, gradients, name="adagrad", epsilon=1e-3))
    for name, p in leaves(params).items():
        total = 0.1
        for g in (leaves(g)[name] for g in gradients):
            total = total + g**2
            p = p - 0.1 * g / np.sqrt(total + 1e-3)
        np.testing.assert_allclose(got[name], p, atol=1e-6)


def test_clip_by_global_norm():
    params, gradients = params_and_gradients(1)
    got = run(params, gradients, name="sgd", b1=0.0, clip=1.0)
    change = np.sqrt(sum(((leaves(got)[n] - p) ** 2).sum() for n, p in leaves(params).items()))
    np.testing.assert_allclose(change, 0.1, rtol=1e-4)


@pytest.mark.parametrize(
    ("section", "change", "key"),
    [
        ("optimizer", {"decay": "some"}, "config.optimizer.decay"),
        ("schedule", {"kind": "linear", "warmup": 500}, "config.schedule.warmup=500"),
    ],
)
def test_optimizer_mistakes(section, change, key):
    config = common.base()
    config[section].update(change)
    with pytest.raises(UserError, match=key):
        optimizers.build(config.optimizer, config.schedule, 100, named({}))
