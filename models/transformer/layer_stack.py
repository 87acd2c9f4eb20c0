"""Depth: the same block L times, its parameters stored as [L, ...] whatever way the layers are run, or shared."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.products import PRODUCT
from models.transformer.context import Signals

_products = jax.checkpoint_policies.save_only_these_names(PRODUCT)
REMAT: Mapping[str, Callable | None] = {
    "none": None,  # keep every activation
    "full": jax.checkpoint_policies.nothing_saveable,  # keep each layer's input alone
    # Keep matrix products, attention's too, and recompute what is element-wise.
    "dots": jax.checkpoint_policies.save_from_both_policies(_products, jax.checkpoint_policies.dots_saveable),
    "dots_no_batch": _products,  # keep products with weights alone, and recompute attention
}


@dataclasses.dataclass(frozen=True)
class Stack:
    """`layers` blocks, whose parameters are one tree with a leading axis L, or a tuple of each one's (`apart`).

    `blocks` is one period of the depth, which divides it: layer l is blocks[l % period]. They have the same parameters
    and differ in what they do, such as the attention pattern. Scanned, the compiled program holds one period and a
    loop; unscanned, every layer.

    With `groups` the leading axis is that: each set of parameters serves layers / groups layers in a row, a multiple of
    the period (Lan et al. 2019, section 3.1). A layer still draws its own dropout. 0: each layer has its own.
    """

    blocks: tuple[nn.Module, ...]
    layers: int
    scan: bool
    remat: str
    groups: int = 0

    @property
    def sets(self) -> tuple[int, ...]:
        """Of each layer, which place along the leading axis its parameters have."""
        return tuple(layer // self._sharing for layer in range(self.layers))

    @property
    def _sharing(self) -> int:
        """How many layers in a row have the same parameters."""
        return self.layers // self.groups if self.groups else 1

    def init(self, key: jax.Array, x: jax.Array, signals: Signals) -> Mapping:
        """Parameters of all layers or groups, drawn independently; every leaf's first axis is named "layers"."""
        draw = jax.vmap(lambda one: self.blocks[0].init(one, x, signals, {})["params"])
        sets = jax.random.split(key, self.groups or self.layers)
        return nn.meta.add_axis(draw(sets), 0, {nn.PARTITION_NAME: "layers"})

    def __call__(self, params: Mapping, x: jax.Array, signals: Signals, carried: Mapping, key: jax.Array | None):
        """x [B, T, D] -> [B, T, D], and `carried` as the last layer left it. `key` feeds dropout; None without it."""

        def apply(block, x, carried, params, layer):
            rngs = {} if key is None else {"dropout": jax.random.fold_in(key, layer)}
            return block.apply({"params": params}, x, signals.replace(layer=layer), carried, rngs=rngs)

        runs = [self._remat(functools.partial(apply, block)) for block in self.blocks]
        period, carry = len(runs), (x, dict(carried))
        sharing = self._sharing
        if not self.scan or isinstance(params, tuple):
            for first, own in zip(range(0, self.layers, sharing), apart(params), strict=True):
                for layer in range(first, first + sharing):
                    carry = runs[layer % period](*carry, own, layer)
            return carry
        if sharing > 1:
            return self._scan_shared(runs, sharing, carry, params)

        def group(carry, params_and_layer):
            params, layer = params_and_layer
            for offset, (run, own) in enumerate(zip(runs, apart(params), strict=True)):
                carry = run(*carry, own, layer + offset)
            return carry, None

        groups = self.layers // period
        split = jax.tree.map(lambda p: p.reshape(groups, period, *p.shape[1:]), params)
        carry, _ = jax.lax.scan(group, carry, (split, period * jnp.arange(groups)))
        return carry

    def _scan_shared(self, runs, sharing: int, carry, params: Mapping):
        """The layers of every group in a loop of their own, which adds up the gradients of what they share."""

        def group(carry, own_and_first):
            own, first = own_and_first

            def layers(carry, layer):
                for offset, run in enumerate(runs):
                    carry = run(*carry, own, layer + offset)
                return carry, None

            return jax.lax.scan(layers, carry, first + jnp.arange(0, sharing, len(runs)))[0], None

        return jax.lax.scan(group, carry, (params, jnp.arange(0, self.layers, sharing)))[0]

    def _remat(self, run):
        if self.remat == "none":
            return run
        # A scan's body is computed apart from its backward pass anyway, so the barrier against merging both is waste.
        return jax.checkpoint(run, policy=REMAT[self.remat], prevent_cse=not self.scan)


def stack_param(module: nn.Module, name: str, init: Callable, *args):
    """The parameters of a Stack, which `module` keeps as `name`: as they are given, or made by `init(key, *args)`.

    `module.param` would trace `init`, a whole block, wherever the model is applied, only to compare shapes: a fifth of
    the start of a small run. The blocks compare those of a layer, and the Stack has as many layers as it is given.
    """
    if module.has_variable("params", name):
        return nn.unbox(module.get_variable("params", name))
    return module.param(name, init, *args)


def apart(tree) -> tuple:
    """The tree of each layer, from one of [L, ...]; of what is apart already, the same.

    Split at once, so that their gradients are joined at once: those of `leaf[index]` would be padded with zeros to
    [L, ...] each, and added up.
    """
    if isinstance(tree, tuple):
        return tree
    leaves, structure = jax.tree.flatten(tree)
    return tuple(structure.unflatten(layer) for layer in zip(*(jnp.unstack(leaf) for leaf in leaves), strict=True))
