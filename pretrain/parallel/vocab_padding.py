"""Padding of vocabularies between steps, so that every device holds an equal share of each table.

JAX keeps an array evenly split or not at all, and vocabularies divide over nothing: GPT-2's 50,257 rows are 29 x 1,733.
So between steps such an axis is rounded up to a multiple of its shards. Inside a step it has its true size, which XLA
splits with the same boundaries and masks by itself: no padding enters a loss, a norm, a mean or a decay. Checkpoints
hold the true sizes, and so fit every mesh.

Leaves here are `jax.ShapeDtypeStruct`s of the true shape, with the sharding that the array has between steps.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from models.layers.init import mesh_axes_of
from pretrain.parallel.mesh import spread


def padded(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The leaf between steps: every axis a multiple of its shards."""
    shards = [_shards(leaf.sharding.mesh, part) for part in _parts(leaf)]
    shape = (-(-size // count) * count for size, count in zip(leaf.shape, shards, strict=True))
    return leaf.update(shape=tuple(shape))


def stored(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The leaf in a checkpoint: its true shape; mesh axes that do not divide it split another axis instead."""
    mesh, parts, freed = leaf.sharding.mesh, _parts(leaf), []
    for axis, (part, size) in enumerate(zip(parts, leaf.shape, strict=True)):
        if size % _shards(mesh, part):
            freed += mesh_axes_of(part)
            parts[axis] = None
    spec = spread(mesh, parts, leaf.shape, freed, range(len(parts)))
    return leaf.update(sharding=NamedSharding(mesh, PartitionSpec(*spec)))


def fill(tree, leaves):
    """Pad traced arrays of true shapes with zeros; the caller constrains their shardings."""

    def one(array, leaf):
        widths = [(0, after - size) for after, size in zip(padded(leaf).shape, leaf.shape, strict=True)]
        return jnp.pad(array, widths) if any(map(any, widths)) else array

    return jax.tree.map(one, tree, leaves)


def strip(tree, leaves):
    """Cut padded traced arrays to their true shapes."""

    def one(array, leaf):
        if array.shape == leaf.shape:
            return array
        return jax.lax.with_sharding_constraint(array[tuple(map(slice, leaf.shape))], leaf.sharding)

    return jax.tree.map(one, tree, leaves)


def to_stored(tree, leaves):
    """Convert padded arrays to those of a checkpoint; arrays without padding pass through."""
    return _convert(strip, tree, leaves, stored)


def to_padded(tree, leaves):
    """The inverse of `to_stored`."""
    return _convert(fill, tree, leaves, padded)


def _convert(change, tree, leaves, target):
    arrays, structure = jax.tree.flatten(tree)
    leaves = jax.tree.leaves(leaves)
    uneven = [index for index, leaf in enumerate(leaves) if padded(leaf).shape != leaf.shape]
    if uneven:  # only these, in one program: a copy of everything would double the memory
        wanted = [leaves[index] for index in uneven]
        run = jax.jit(lambda arrays: change(arrays, wanted), out_shardings=[target(leaf).sharding for leaf in wanted])
        for index, array in zip(uneven, run([arrays[index] for index in uneven]), strict=True):
            arrays[index] = array
    return structure.unflatten(arrays)


def _parts(leaf) -> list:
    return [*leaf.sharding.spec, *[None] * (len(leaf.shape) - len(leaf.sharding.spec))]


def _shards(mesh, part) -> int:
    return math.prod(mesh.shape[axis] for axis in mesh_axes_of(part))
