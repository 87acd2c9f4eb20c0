"""A stack of L blocks; parameters are stored as [L, ...] whether layers are scanned, unrolled or shared."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.backward import REMAT
from models.transformer.block import Context


@dataclasses.dataclass(frozen=True)
class Stack:
    """`layers` blocks, whose parameters are one tree with a leading axis L, or a tuple of L trees.

    blocks: one period of the depth; layer l is blocks[l % period]. They have the same parameters and differ in what
        they compute, such as the attention pattern.
    scan: the compiled program holds one period and a loop instead of every layer.
    groups: above 0, the leading axis has this length, and each set of parameters serves layers / groups consecutive
        layers, a multiple of the period (ALBERT, Lan et al. 2019, section 3.1). Each layer still draws its own dropout.
    """

    blocks: tuple[nn.Module, ...]
    layers: int
    scan: bool
    remat: str
    groups: int = 0

    @property
    def param_index(self) -> tuple[int, ...]:
        """For each layer, the index of its parameters along the leading axis."""
        return tuple(layer // self._layers_per_set for layer in range(self.layers))

    @property
    def _layers_per_set(self) -> int:
        return self.layers // self.groups if self.groups else 1

    def init(self, key: jax.Array, x: jax.Array, context: Context) -> Mapping:
        """Parameters of all layers or groups, drawn independently; every leaf's first axis is named "layers"."""
        # One trace for all layers: starting takes as long for 96 as for 2.
        draw = jax.vmap(lambda one: self.blocks[0].init(one, x, context, {})["params"])
        keys = jax.random.split(key, self.groups or self.layers)
        return nn.meta.add_axis(draw(keys), 0, {nn.PARTITION_NAME: "layers"})

    def __call__(self, params: Mapping, x: jax.Array, context: Context, carried: Mapping, key, keep: bool = False):
        """(x [B, T, D] and `carried` after the last layer, all states [L + 1, B, T, D], x first, if `keep` else None).

        `key` feeds dropout, None if it is off.
        """

        def apply(block, x, carried, params, layer):
            # By layer index, not by splitting: scanned, unrolled and shared layers draw the same.
            rngs = {} if key is None else {"dropout": jax.random.fold_in(key, layer)}
            return block.apply({"params": params}, x, context.replace(layer=layer), carried, rngs=rngs)

        runs = [self._remat(functools.partial(apply, block)) for block in self.blocks]
        period, carry, states = len(runs), (x, dict(carried)), [x]
        shared_by = self._layers_per_set
        if not self.scan or isinstance(params, tuple):
            for first, own in zip(range(0, self.layers, shared_by), unstack_layers(params), strict=True):
                for layer in range(first, first + shared_by):
                    carry = runs[layer % period](*carry, own, layer)
                    states.append(carry[0])
            return *carry, jnp.stack(states) if keep else None
        if shared_by > 1:
            carry, layers = self._scan_shared(runs, shared_by, carry, params, keep)
            return *carry, _all_states(x, layers)

        def run_period(carry, params_and_layer):
            (params, layer), states = params_and_layer, []
            for offset, (run, own) in enumerate(zip(runs, unstack_layers(params), strict=True)):
                carry = run(*carry, own, layer + offset)
                states.append(carry[0])
            return carry, jnp.stack(states) if keep else None

        # One scan step runs a whole period, so that each block's pattern is static in the compiled loop.
        periods = self.layers // period
        split = jax.tree.map(lambda p: p.reshape(periods, period, *p.shape[1:]), params)
        # What the loop keeps is [periods, period, B, T, D]; None costs nothing.
        carry, layers = jax.lax.scan(run_period, carry, (split, period * jnp.arange(periods)))
        return *carry, _all_states(x, layers)

    def _scan_shared(self, runs, shared_by: int, carry, params: Mapping, keep: bool):
        # Two nested loops. The inner one sums the gradients of the parameters its layers share; repeating parameters
        # to [L, ...] before one loop would hold L gradients.
        def run_group(carry, own_and_first):
            own, first = own_and_first

            def run_period(carry, layer):
                states = []
                for offset, run in enumerate(runs):
                    carry = run(*carry, own, layer + offset)
                    states.append(carry[0])
                return carry, jnp.stack(states) if keep else None

            return jax.lax.scan(run_period, carry, first + jnp.arange(0, shared_by, len(runs)))

        return jax.lax.scan(run_group, carry, (params, jnp.arange(0, self.layers, shared_by)))

    def _remat(self, run):
        if self.remat == "none":
            return run
        # The barrier against merging forward and backward is needed only in unrolled layers: the body of a scan is
        # compiled apart from its backward pass anyway.
        return jax.checkpoint(run, policy=REMAT[self.remat], prevent_cse=not self.scan)


def _all_states(x: jax.Array, layers: jax.Array | None) -> jax.Array | None:
    """[L + 1, B, T, D] of a stack's input and what its loops kept, [..., B, T, D]; None if that is None."""
    return None if layers is None else jnp.concatenate([x[None], layers.reshape(-1, *x.shape)])


def stack_param(module: nn.Module, name: str, init: Callable, *args):
    """The parameters of a Stack, which `module` stores as `name`; `init(key, *args)` creates them."""
    # `module.param` would trace `init`, a whole block, at every call of the model, only to compare shapes: a fifth of
    # the start of a small run. The blocks compare those of a layer themselves.
    if module.has_variable("params", name):
        return nn.unbox(module.get_variable("params", name))
    return module.param(name, init, *args)


def unstack_layers(tree) -> tuple:
    """A tuple of one tree for each layer, from a tree of [L, ...]; a tuple is returned as it is."""
    if isinstance(tree, tuple):
        return tree
    # Unstacked at once, so that gradients are stacked at once. The gradient of `leaf[index]` would be padded with zeros
    # to [L, ...], and L of those added up.
    leaves, structure = jax.tree.flatten(tree)
    return tuple(structure.unflatten(layer) for layer in zip(*(jnp.unstack(leaf) for leaf in leaves), strict=True))
