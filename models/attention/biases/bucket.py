"""A bias by bucket of distances: one learned number for each head and bucket (T5: Raffel et al. 2019, section 2.1)."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from models.attention.biases.shift import move
from models.errors import ModelError


@struct.dataclass
class ByBucket:
    """Near distances have a bucket each, farther ones share buckets that widen with the logarithm of the distance.

    The same number stands along each diagonal, so that a piece is made of a row of them. In a cache, whose rows end at
    their own places, each is looked up.
    """

    table: jax.Array  # [1, N, buckets]
    both_ways: bool = struct.field(pytree_node=False)  # half of the buckets are for keys that follow the query
    max_distance: int = struct.field(pytree_node=False)  # from here on all distances share the last bucket
    stored = False
    products = 0

    def check(self, batch, heads, T, S):
        if self.table.ndim != 3 or self.table.shape[:2] != (1, heads):
            raise ModelError(f"a table of buckets has shape {self.table.shape}; it must be [1, {heads}, buckets]")

    def map_queries(self, function: Callable) -> "ByBucket":
        return self

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        if mask.offset is not None:
            key = first + jnp.arange(keys, dtype=jnp.int32)[None, None, None, :]
            ahead = key - mask.positions(start + jnp.arange(rows, dtype=jnp.int32))[..., :, None]
            return jnp.moveaxis(self._values(ahead[:, 0])[0], 0, 1)
        ahead = jnp.arange(rows + keys - 1, dtype=jnp.int32) + first - (mask.memory + start + rows - 1)
        values = jnp.pad(self._values(ahead), ((0, 0), (0, 0), (1, 0)))[:, :, None]
        return move(jnp.broadcast_to(values, (*values.shape[:2], rows, values.shape[3])), keys)

    def pairs(self, position, ahead) -> jax.Array:
        return self._values(ahead[0, 0])

    def _values(self, ahead):
        """The numbers [1, N, ...] of keys so many positions ahead of their queries, int [...]."""
        return jnp.take(self.table, bucket(ahead, self.table.shape[2], self.max_distance, self.both_ways), axis=2)


def bucket(ahead: jax.Array, buckets: int, max_distance: int, both_ways: bool) -> jax.Array:
    """The bucket, int32, of a key that stands `ahead` positions after its query (negative: before it).

    One way, keys ahead count as the query itself: causal attention does not see them.
    """
    if both_ways:
        buckets //= 2
        base, distance = jnp.where(ahead > 0, buckets, 0), jnp.abs(ahead)
    else:
        base, distance = 0, jnp.maximum(-ahead, 0)
    edges = jnp.asarray(_edges(buckets, max_distance), jnp.int32)
    return (base + jnp.searchsorted(edges, distance, side="right")).astype(jnp.int32)


@functools.cache
def _edges(buckets: int, max_distance: int) -> np.ndarray:
    """The smallest distance of each bucket but the first.

    With E = buckets / 2 buckets of one distance each, those after begin where E (max_distance / E)^(k / (buckets - E))
    is reached, in whole numbers: float32 logarithms are a rounding off at 16, 32 and 64.
    """
    exact = buckets // 2
    steps, edges, distance = buckets - exact, list(range(1, exact + 1)), exact
    for k in range(1, steps):
        while distance**steps * exact**k < max_distance**k * exact**steps:
            distance += 1
        edges.append(distance)
    return np.array(edges)
