"""Rows picked from a table that lies split by columns: on the way there, rows of the batch are traded for columns."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from models.layers.grad_sharding import resting
from models.layers.parameter import mesh_axes_of


def looked_up(table: jax.Array, ids: jax.Array) -> jax.Array:
    """table [V, D], whose axes are "vocab" and "embed", ids [B, T] -> rows [B, T, D].

    Devices that share both the batch and the columns look up all their rows in the columns that each has, and trade
    afterwards. Left to itself XLA then also forgets the split of the batch over other devices, and gives each the whole
    batch ("involuntary full rematerialization").
    """
    rows = jnp.take(table, ids, axis=0)
    sharding = resting(table, ("vocab", "embed"))
    columns = mesh_axes_of(sharding.spec[1]) if sharding else ()
    if not columns:
        return rows
    batch, length = nn.logical_to_mesh_axes(("batch", "length"))
    others = tuple(axis for axis in mesh_axes_of(batch) if axis not in columns)
    split = NamedSharding(sharding.mesh, PartitionSpec(others or None, length, columns))
    return jax.lax.with_sharding_constraint(rows, split)
