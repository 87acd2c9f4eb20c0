"""A bias that is an array: an entry for every query and key."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from models.errors import ModelError


@struct.dataclass
class Stored:
    """The array [B or 1, N or 1, T, S]."""

    array: jax.Array
    stored = True
    products = 0

    def check(self, batch, heads, T, S):
        full, shape = (batch, heads, T, S), self.array.shape
        fits = len(shape) == 4 and shape[2:] == (T, S) and shape[0] in (1, batch) and shape[1] in (1, heads)
        if not fits:
            raise ModelError(f"attention bias has shape {shape}; it must be [1 or B, 1 or N, T, S] of {full}")

    def map_queries(self, function: Callable) -> "Stored":
        return self.replace(array=function(self.array))

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        return self.array[..., first : first + keys]

    def pairs(self, position, ahead) -> jax.Array:
        key = jnp.clip(position[..., None] + ahead, 0, self.array.shape[-1] - 1)
        return jnp.take_along_axis(self.array, jnp.broadcast_to(key, (*self.array.shape[:-1], key.shape[-1])), axis=-1)
