"""A bias by whether query and key are of one kind: XLNet's relative segments (Yang et al. 2019, section 2.5)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from models.errors import ModelError


@struct.dataclass
class ByMatch:
    """Of each query and head, one number for keys of the query's own kind, and another for all others.

    Kinds are floats, since a bias may be differentiated by all that it holds.
    """

    same: jax.Array  # [B, N, T]
    other: jax.Array  # [B, N, T]
    query_kinds: jax.Array  # [B, 1, T]
    key_kinds: jax.Array  # [B, 1, S]
    stored = False
    products = 0

    def check(self, batch, heads, T, S):
        arrays = {
            "same": (self.same, (batch, heads, T)),
            "other": (self.other, (batch, heads, T)),
            "query_kinds": (self.query_kinds, (batch, 1, T)),
            "key_kinds": (self.key_kinds, (batch, 1, S)),
        }
        for name, (array, shape) in arrays.items():
            if array.shape != shape:
                raise ModelError(f"a bias by kinds has {name} of shape {array.shape}; it must be {shape}")

    def map_queries(self, function: Callable) -> "ByMatch":
        return self.replace(
            same=function(self.same), other=function(self.other), query_kinds=function(self.query_kinds)
        )

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        return self._chosen(self.key_kinds[:, :, None, first : first + keys])

    def pairs(self, position, ahead) -> jax.Array:
        key = jnp.clip(position[..., None] + ahead, 0, self.key_kinds.shape[2] - 1)
        return self._chosen(jnp.take(self.key_kinds, key[0, 0], axis=2))

    def _chosen(self, kinds):
        """[B, N, ..., rows, keys], of keys of the `kinds` [B, 1, ..., rows or 1, keys]."""
        return jnp.where(self.query_kinds[..., None] == kinds, self.same[..., None], self.other[..., None])
