"""Gradient transformations that optimizers share: roles of parameters, decay, stacked layers, skipped updates."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from models.layers.init import is_box
from pretrain.errors import lookup


@dataclass(frozen=True)
class Role:
    """How optimizers treat a parameter, as its model declares it next to the names of its axes."""

    stacked: bool  # [L, ...]: a tensor for each layer
    inputs: int  # leading axes, after the stacked one, that are inputs of a matrix; 0 for biases and gains

    @property
    def matrix(self) -> bool:
        """Whether it is a matrix or a table. The number of axes does not tell: stacked gains have two as well."""
        return self.inputs > 0


def roles(params):
    """The role of every parameter, of the boxes in which a model starts them (`models.layers.init`)."""
    return jax.tree.map(lambda box: Role(box.stacked, box.inputs), params, is_leaf=is_box)


def map_roles(function: Callable, roles, *trees):
    """`function(role, leaf, ...)` over trees like the parameters; what optax masks stays masked."""
    return jax.tree.map(lambda role, *nodes: jax.tree.map(functools.partial(function, role), *nodes), roles, *trees)


DECAY = {"matrices": lambda role: role.matrix, "all": lambda role: True}  # config.optimizer.decay


def decay(options, roles) -> optax.GradientTransformation:
    """Weight decay, decoupled from the gradient (Loshchilov and Hutter 2019)."""
    decays = lookup("config.optimizer.decay", options["decay"], DECAY)
    if not options["weight_decay"]:
        return optax.identity()
    # Added before the learning rate scales the update, which makes the decay rate * weight_decay.
    return optax.add_decayed_weights(options["weight_decay"], mask=jax.tree.map(decays, roles))


def where(good, new, old):
    """The tree `new` where an update is good, else `old`."""
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)


def skip_nonfinite(transformation: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`transformation` whose state does not change in `update(..., good=False)`."""

    def update(updates, state, params=None, *, good=True):
        changed, after = transformation.update(updates, state, params)
        return changed, where(good, after, state)

    return optax.GradientTransformationExtraArgs(transformation.init, update)


def per_layer(transformation: optax.GradientTransformation, roles) -> optax.GradientTransformation:
    """`transformation`, which treats whole tensors one by one, over each layer of stacked parameters [L, ...].

    Equal to running it over unstacked layers. L may differ, as an encoder's and a decoder's do.
    """
    # Trust ratios, factors and orthogonal updates are of one layer's tensor: L is mapped over.
    over_layers = optax.GradientTransformation(jax.vmap(transformation.init), jax.vmap(transformation.update))

    def by_depth(tree) -> optax.GradientTransformation:
        depths = jax.tree.map(lambda leaf: str(leaf.shape[0]), tree)
        names = set(jax.tree.leaves(depths))
        # With one depth the state keeps the structure that earlier checkpoints have.
        return optax.partition(dict.fromkeys(names, over_layers), depths) if len(names) > 1 else over_layers

    def init(params):
        return by_depth(params).init(params)

    def update(updates, state, params=None):
        return by_depth(updates).update(updates, state, params)

    stacked = optax.GradientTransformation(init, update)
    labels = jax.tree.map(lambda role: "stacked" if role.stacked else "plain", roles)
    return optax.partition({"plain": transformation, "stacked": stacked}, labels)
