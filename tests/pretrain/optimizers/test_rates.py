"""Rates by depth: closed forms of the updates of each layer, of heads and of tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import small_config

from models.layers.init import path_name
from pretrain.optimizers.transforms import roles
from pretrain.step.train_spec import TrainSpec

RATE, DECAY, HEAD, WEIGHT_DECAY = 0.1, 1 / 2.6, 5.0, 0.01
LAYERS = 3
B1, B2, EPSILON = 0.9, 0.95, 1e-8


def factor(name):
    """The factors of a parameter's rate, written out for three layers."""
    if name.startswith("layers"):
        return np.array([DECAY**2, DECAY, 1.0])
    return {"head": HEAD, "final_norm/scale": 1.0, "final_norm/bias": 1.0}.get(name, DECAY**LAYERS)


def sgd(p, gradients, rate, decay):
    for g in gradients:
        p = p - rate * (g + decay * p)
    return p


def adam(p, gradients, rate, decay):
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        p = p - rate * (m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + EPSILON) + decay * p)
    return p


@pytest.mark.parametrize(("name", "closed_form"), [("sgd", sgd), ("adamw", adam)])
def test_layer_decay_update_of_each_layer(name, closed_form):
    config = small_config(model__layers=LAYERS, model__tied_head=False, optimizer__name=name)
    config.optimizer.update(layer_decay=DECAY, head_rate=HEAD, clip=0.0, weight_decay=WEIGHT_DECAY)
    config.optimizer.update(b1=B1 if name == "adamw" else 0.0, b2=B2, epsilon=EPSILON)
    config.schedule.update(kind="constant", warmup=0, peak=RATE)
    spec, draw = TrainSpec.build_abstract(config), np.random.default_rng(0)
    one_of, known = lambda: jax.tree.map(lambda s: draw.normal(size=s.shape), spec.param_shapes), {}
    start, gradients = one_of(), [one_of() for _ in range(3)]
    for (path, p), role, *g in zip(
        jax.tree_util.tree_leaves_with_path(start),
        jax.tree.leaves(roles(spec.parameters, spec.model)),
        *map(jax.tree.leaves, gradients),
        strict=True,
    ):
        rate = RATE * factor(path_name(path))
        rate = rate.reshape(-1, *(1,) * (p.ndim - 1)) if np.ndim(rate) else rate
        known[path_name(path)] = closed_form(p, g, rate, WEIGHT_DECAY * role.matrix)
    params, state = jax.tree.map(jnp.float32, start), spec.optimizer.init(jax.tree.map(jnp.float32, start))
    for gradient in gradients:
        updates, state = spec.optimizer.update(jax.tree.map(jnp.float32, gradient), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        np.testing.assert_allclose(leaf, known[path_name(path)], rtol=2e-5, atol=2e-6, err_msg=path_name(path))
