"""How many bytes a tree of arrays takes, by its shapes."""

import math

import jax
import jax.numpy as jnp


def whole_bytes(shapes) -> int:
    """Bytes of all of a tree of shapes, wherever it lies."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def on_device(shapes, dtype=None) -> int:
    """Bytes on one device of a tree of shapes with shardings; in another type if one is given."""
    leaves = jax.tree.leaves(shapes)
    sizes = ((leaf.sharding.shard_shape(leaf.shape), jnp.dtype(dtype or leaf.dtype).itemsize) for leaf in leaves)
    return sum(math.prod(shape) * itemsize for shape, itemsize in sizes)
