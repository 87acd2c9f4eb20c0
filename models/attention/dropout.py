"""Dropout of attention probabilities as a function of (seed, row of the batch, head, query, key).

Every path draws the same bits for the same entry, however it tiles or skips, so a fast path equals the oracle with
dropout too, and a tile is drawn again in the backward pass instead of being stored.
"""

import jax
import jax.numpy as jnp
from flax import struct


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit integers in which each input bit flips about half of the output bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)


@struct.dataclass
class Dropout:
    """The rate, and a seed for each batch row and head: uint32 [B, N]."""

    seeds: jax.Array
    rate: float = struct.field(pytree_node=False)

    @classmethod
    def of_rows(cls, rate: float, key: jax.Array, rows: jax.Array, heads: int) -> "Dropout":
        """What rows [B] int32 draw, which are their places in the whole global batch, however it is split."""
        draw = jax.vmap(lambda row: jax.random.bits(jax.random.fold_in(key, row), (heads,), jnp.uint32))
        return cls(draw(rows), rate)

    def heads(self, index) -> "Dropout":
        """The same for some of the heads."""
        return self.replace(seeds=self.seeds[:, index])

    def scales(self, query: jax.Array, key: jax.Array) -> jax.Array:
        """Factors of the probabilities at query and key indices that broadcast against [B, N, ...]: 0 or 1/(1 - rate).

        Indices have the rank of the result, float32, whose leading axes are B, N.
        """
        seeds = self.seeds.reshape(self.seeds.shape + (1,) * (query.ndim - 2))
        rows = _mix(seeds + query.astype(jnp.uint32))
        bits = _mix(rows ^ (key.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)))
        keep = bits >= jnp.uint32(round(self.rate * 2**32))
        return keep.astype(jnp.float32) * (1.0 / (1.0 - self.rate))

    def tile(self, query_start, query_count: int, key_start, key_count: int) -> jax.Array:
        """Factors of a rectangle: float32 [B, N, queries, keys]."""
        query = query_start + jnp.arange(query_count, dtype=jnp.int32)
        key = key_start + jnp.arange(key_count, dtype=jnp.int32)
        return self.scales(query[None, None, :, None], key[None, None, None, :])
