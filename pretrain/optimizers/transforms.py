"""Gradient transformations that optimizers share: roles of parameters, decay, stacked layers, skipped updates."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import numpy as np
import optax

from models.layers.init import is_box, path_name
from pretrain.errors import lookup

EPOCH = -1  # value of `config.optimizer.unfreeze`


@dataclass(frozen=True)
class Role:
    """How optimizers treat a parameter, as its model declares it next to the names of its axes."""

    stacked: bool  # [L, ...]: a tensor for each layer
    inputs: int  # leading axes, after the stacked one, that are inputs of a matrix; 0 for biases and gains
    above: tuple[int, ...] = (0,)  # layers above it: a number for each layer if stacked, else one
    head: bool = False  # predicts from the last layer's states
    begin: tuple[int, ...] = (0,)  # updates after which it is trained, for each of `above`

    @property
    def matrix(self) -> bool:
        """Whether it is a matrix or a table. The number of axes does not tell: stacked gains have two as well."""
        return self.inputs > 0


def roles(params, model):
    """The role of every parameter of `model`, of the boxes in which it starts them (`models.layers.init`).

    Each stack counts its own layers. All layers are above a parameter outside of the stacks, unless it reads the last
    one's states.
    """
    boxes = jax.tree.leaves(params, is_leaf=is_box)
    depth = max((box.value.shape[0] for box in boxes if box.stacked), default=0)

    def one(path, box):
        name = path_name(path)
        head = not box.stacked and matches(name, model.head_params)
        above = tuple(reversed(range(box.value.shape[0]))) if box.stacked else (depth,)
        return Role(box.stacked, box.inputs, (0,) if head or matches(name, model.final_norms) else above, head)

    return jax.tree_util.tree_map_with_path(one, params, is_leaf=is_box)


def matches(name: str, patterns) -> bool:
    """Whether a parameter's path, or a part of the tree that it is in, has one of the `patterns` ("layers/*/bias")."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*") for pattern in patterns)


def map_roles(function: Callable, roles, *trees):
    """`function(role, leaf, ...)` over trees like the parameters; what optax masks stays masked."""
    return jax.tree.map(lambda role, *nodes: jax.tree.map(functools.partial(function, role), *nodes), roles, *trees)


def by_layer(role: Role, values, leaf) -> np.ndarray:
    """`values`, one for each of `role.above`, along the first axis of a stacked leaf; a scalar for any other."""
    return np.reshape(values, (-1, *(1,) * (leaf.ndim - 1)) if role.stacked else ())


def unfreeze_gradually(roles, every: float):
    """`roles` that begin to be trained one layer after the other, `every` updates apart (Howard and Ruder 2018).

    First heads and norms of the last states, then layers from the top, last what is below all layers. With 0 all
    begin at once.
    """
    if not every:
        return roles

    def group(role):
        return [above + 1 if role.stacked or above else 0 for above in role.above]

    # Ranks: where there is no head, the top layers are trained from the start.
    present = sorted({number for role in jax.tree.leaves(roles) for number in group(role)})

    def one(role):
        return dataclasses.replace(role, begin=tuple(math.ceil(present.index(n) * every) for n in group(role)))

    return jax.tree.map(one, roles)


def mask_unfrozen(roles, tree, count):
    """`tree`, of gradients or updates, with zeros where a parameter is not trained after `count` updates."""
    if not any(any(role.begin) for role in jax.tree.leaves(roles)):
        return tree
    return map_roles(lambda role, leaf: jnp.where(count >= by_layer(role, role.begin, leaf), leaf, 0), roles, tree)


def scale_by_depth(options, roles) -> optax.GradientTransformation | None:
    """Rates by depth: times layer_decay^(layers above); heads times `head_rate`. None if both are 1."""
    decay, head = options["layer_decay"], options["head_rate"]
    if decay == head == 1:
        return None

    def scale(role, update):
        factors = np.float32([decay**above * (head if role.head else 1) for above in role.above])
        return update * by_layer(role, factors, update)

    return optax.stateless(lambda updates, params=None: map_roles(scale, roles, updates))


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
        if not names:  # all stacked parameters are frozen
            return optax.identity()
        # With one depth the state keeps the structure that earlier checkpoints have.
        return optax.partition(dict.fromkeys(names, over_layers), depths) if len(names) > 1 else over_layers

    def init(params):
        return by_depth(params).init(params)

    def update(updates, state, params=None):
        return by_depth(updates).update(updates, state, params)

    stacked = optax.GradientTransformation(init, update)
    labels = jax.tree.map(lambda role: "stacked" if role.stacked else "plain", roles)
    return optax.partition({"plain": transformation, "stacked": stacked}, labels)
