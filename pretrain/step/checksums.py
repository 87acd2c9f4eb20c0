"""What devices hold alike, weighed: a number for each array on each device, which one changed bit changes."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def weights(leaves: Sequence[jax.Array]) -> jax.Array:
    """uint32 [len(leaves)]: for each array its numbers' bits, times an odd number for each place, added up.

    Everything is modulo 2^32, in which an odd factor loses nothing: any change of a single number is seen.
    """
    return jnp.stack([_weight(leaf) for leaf in leaves])


def _weight(leaf: jax.Array) -> jax.Array:
    leaf = leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf
    bits = jax.lax.bitcast_convert_type(leaf, WORDS[leaf.dtype.itemsize]).astype(jnp.uint32)
    place = jnp.zeros(leaf.shape, jnp.uint32)
    for axis, size in enumerate(leaf.shape):  # the place in the array, without making a vector of it
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)


class Checksums:
    """The checksums of the copies that devices hold of the arrays of a train state."""

    def weigh(self, leaves: list[jax.Array]) -> dict:
        """What each device of this process has of `leaves`: {device: uint32 [leaves]}."""
        rows = self._program(leaves)(leaves)
        return {shard.device: np.asarray(shard.data).reshape(-1) for shard in rows.addressable_shards}


class OnMesh(Checksums):
    """Of global arrays on a mesh."""

    def __init__(self, mesh: Mesh):
        self._mesh, self._programs = mesh, {}

    def _program(self, leaves):
        specs = [leaf.sharding.spec for leaf in leaves]
        if tuple(specs) not in self._programs:
            rows = PartitionSpec(self._mesh.axis_names)  # of uint32 [devices, leaves], each where it is the row of
            each = jax.shard_map(
                lambda leaves: weights(leaves)[None],
                mesh=self._mesh,
                in_specs=(specs,),
                out_specs=rows,
                check_vma=False,
            )
            self._programs[tuple(specs)] = jax.jit(each)
        return self._programs[tuple(specs)]

    def first(self, leaves: list[jax.Array], devices: Sequence) -> np.ndarray:
        """[devices, leaves]: the place among `devices` of the first that holds the same part of an array as each."""
        columns = []
        for leaf in leaves:
            parts, first = leaf.sharding.devices_indices_map(leaf.shape), {}
            named = [tuple((piece.start, piece.stop) for piece in parts[device]) for device in devices]
            columns.append([first.setdefault(part, place) for place, part in enumerate(named)])
        return np.asarray(columns).T


class Whole(Checksums):
    """Of arrays that every device holds whole, behind a leading axis of devices; `pmap` maps a function over it."""

    def __init__(self, pmap: Callable):
        self._weights = pmap(weights)

    def _program(self, leaves):
        return self._weights

    def first(self, leaves: list[jax.Array], devices: Sequence) -> np.ndarray:
        return np.zeros((len(devices), len(leaves)), np.int64)
