"""Parameters of the tests, which no model has declared: their roles are read off their names."""

import jax
import jax.numpy as jnp
import numpy as np

from configs import common
from models.layers.init import path_name
from pretrain import optimizers
from pretrain.optimizers.transforms import Role


def named(params):
    """The roles of parameters, by their names."""

    def role(path, leaf):
        names = path_name(path).split("/")
        stacked = "layers" in names
        if names[-1] == "scale" or names[-1].endswith("bias"):
            return Role(stacked, 0)
        return Role(stacked, leaf.ndim - stacked - 1 if "output" in names else 1)

    return jax.tree_util.tree_map_with_path(role, params)


def run(params, gradients, **options):
    """The parameters after an update with each of the gradients, at the rate 0.1."""
    config = common.base()
    config.optimizer.update({"clip": 0.0, **options})
    config.schedule.update(kind="constant", warmup=0, peak=0.1)
    tx = optimizers.build(config.optimizer, config.schedule, 100, named(params))
    state = tx.init(params)
    for gradient in gradients:
        updates, state = tx.update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params


def leaves(tree):
    """A tree's arrays in float64, by name."""
    return {path_name(p): np.asarray(x, np.float64) for p, x in jax.tree_util.tree_leaves_with_path(tree)}
