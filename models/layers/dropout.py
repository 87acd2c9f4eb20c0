"""Dropout as a function of (key, row of the global batch), of activations and of attention probabilities."""

import jax
import jax.numpy as jnp
from flax import struct


def dropout(x: jax.Array, rate: float, key: jax.Array | None, row: jax.Array | None = None) -> jax.Array:
    """Zero a share `rate` of x and scale the rest by 1/(1 - rate). Without key or rate, x is returned.

    row [B] int32: index of each row of x [B, ...] in the global batch. None: x is shared by all rows.
    """
    if key is None or rate == 0.0:
        return x

    def draw(key, shape):
        return jax.random.bernoulli(key, 1.0 - rate, shape)

    if row is None:
        keep = draw(key, x.shape)
    else:
        # One key per row, not one draw for [B, ...]: microbatches, devices and hosts then draw what one device would.
        keep = jax.vmap(lambda index: draw(jax.random.fold_in(key, index), x.shape[1:]))(row)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


@struct.dataclass
class AttentionDropout:
    """Dropout of attention probabilities, a hash of (seed, row, head, query, key).

    Every backend draws the same bits for the same entry, however it tiles or skips. So a fast backend equals the
    reference with dropout too, and the backward pass draws a tile again instead of storing T * S bits.
    """

    seeds: jax.Array  # [B, N] uint32, one for each row and head
    rate: float = struct.field(pytree_node=False)

    @classmethod
    def create(cls, rate: float, key: jax.Array, rows: jax.Array, heads: int) -> "AttentionDropout":
        """Dropout for the rows [B] int32 of the global batch, however it is split."""
        draw = jax.vmap(lambda row: jax.random.bits(jax.random.fold_in(key, row), (heads,), jnp.uint32))
        return cls(draw(rows), rate)

    def select_heads(self, index) -> "AttentionDropout":
        """The same for some of the heads."""
        return self.replace(seeds=self.seeds[:, index])

    def factors(self, query: jax.Array, key: jax.Array) -> jax.Array:
        """Factors of the probabilities at pairs of query and key indices: float32, 0 or 1/(1 - rate).

        `query` and `key` broadcast against each other and have the rank of the result, [B, N, ...].
        """
        seeds = self.seeds.reshape(self.seeds.shape + (1,) * (query.ndim - 2))
        rows = _mix(seeds + query.astype(jnp.uint32))
        # 0x9E3779B9 = 2^32 / golden ratio: neighbouring keys differ in many bits before they are mixed.
        bits = _mix(rows ^ (key.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)))
        # Integers are compared, not floats: every platform drops the same entries.
        keep = bits >= jnp.uint32(round(self.rate * 2**32))
        return keep.astype(jnp.float32) * (1.0 / (1.0 - self.rate))

    def tile(self, query_start, query_count: int, key_start, key_count: int) -> jax.Array:
        """Factors of a rectangle of pairs: float32 [B, N, queries, keys]."""
        query = query_start + jnp.arange(query_count, dtype=jnp.int32)
        key = key_start + jnp.arange(key_count, dtype=jnp.int32)
        return self.factors(query[None, None, :, None], key[None, None, None, :])


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of 32-bit integers in which each input bit flips about half of the output bits."""
    # Two multiply-xorshift rounds, constants from a search for low bias. Threefry would cost 20 rounds an entry.
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)
