"""The train state between steps: tables are padded there, so that every device holds an equal share.

JAX keeps an array evenly split or not at all, and vocabularies divide over nothing: GPT-2's 50,257 rows are 29 x 1,733.
So such an axis is at rest rounded up to the next multiple of its shards. Within a step it has its own size again, which
XLA splits with the same boundaries and masks by itself: no row is added to anything that is computed, be it a loss, a
norm, a mean over rows or a decay. Checkpoints hold the true sizes too, and so fit every mesh.

Leaves here are `jax.ShapeDtypeStruct`s of the true shape, with the sharding that the array has at rest.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from models.layers.parameter import mesh_axes_of
from pretrain.parallel.mesh import spread


def padded(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The leaf as it is at rest: every axis a multiple of its shards."""
    shards = [_shards(leaf.sharding.mesh, part) for part in _parts(leaf)]
    shape = (-(-size // count) * count for size, count in zip(leaf.shape, shards, strict=True))
    return leaf.update(shape=tuple(shape))


def stored(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The leaf as checkpoints hold it: of its true shape, an axis that does not divide being split along another."""
    mesh, parts, freed = leaf.sharding.mesh, _parts(leaf), []
    for axis, (part, size) in enumerate(zip(parts, leaf.shape, strict=True)):
        if size % _shards(mesh, part):
            freed += mesh_axes_of(part)
            parts[axis] = None
    spec = spread(mesh, parts, leaf.shape, freed, range(len(parts)))
    return leaf.update(sharding=NamedSharding(mesh, PartitionSpec(*spec)))


def fill(tree, leaves):
    """Traced arrays of true shapes, padded; where they rest is for the caller to say."""

    def one(array, leaf):
        widths = [(0, after - size) for after, size in zip(padded(leaf).shape, leaf.shape, strict=True)]
        return jnp.pad(array, widths) if any(map(any, widths)) else array

    return jax.tree.map(one, tree, leaves)


def strip(tree, leaves):
    """Traced arrays at rest, in their true shapes."""

    def one(array, leaf):
        if array.shape == leaf.shape:
            return array
        return jax.lax.with_sharding_constraint(array[tuple(map(slice, leaf.shape))], leaf.sharding)

    return jax.tree.map(one, tree, leaves)


def store(tree, leaves):
    """Arrays at rest, as checkpoints hold them; those that need no padding are handed on."""
    return _convert(strip, tree, leaves, stored)


def rest(tree, leaves):
    """The inverse of `store`."""
    return _convert(fill, tree, leaves, padded)


def _convert(change, tree, leaves, target):
    arrays, structure = jax.tree.flatten(tree)
    leaves = jax.tree.leaves(leaves)
    uneven = [index for index, leaf in enumerate(leaves) if padded(leaf).shape != leaf.shape]
    if uneven:
        wanted = [leaves[index] for index in uneven]
        run = jax.jit(lambda arrays: change(arrays, wanted), out_shardings=[target(leaf).sharding for leaf in wanted])
        for index, array in zip(uneven, run([arrays[index] for index in uneven]), strict=True):
            arrays[index] = array
    return structure.unflatten(arrays)


def _parts(leaf) -> list:
    return [*leaf.sharding.spec, *[None] * (len(leaf.shape) - len(leaf.sharding.spec))]


def _shards(mesh, part) -> int:
    return math.prod(mesh.shape[axis] for axis in mesh_axes_of(part))
