"""Key/value caches of incremental decoding: pytrees that a model takes and returns."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

PerLayer = jax.Array | tuple[jax.Array, ...]  # [L, ...], or a tuple of one array for each layer


@struct.dataclass
class Cache:
    """Keys and values of each row's tokens so far, for self-attention.

    The token at position p of row b is in slot p, whatever the other rows hold: prompts of different length are padded
    on the right, and a row's next token overwrites its padding. Slots at or beyond `lengths` are never attended to,
    because no query has reached their position yet.
    """

    per_prompt: ClassVar[bool] = False  # samples of one prompt each have their own

    # Heads come before slots, as attention's products need them. The other way round, each generated token would
    # transpose the whole cache.
    key: PerLayer  # [L, B, G, S, H]
    value: PerLayer  # [L, B, G, S, H], where H may differ from the keys'
    lengths: jax.Array  # [B] int32, tokens in each row

    @classmethod
    def empty(cls, layers: int, batch: int, length: int, heads: int, sizes: tuple[int, int], dtype) -> "Cache":
        """An empty cache of `length` slots a row; `sizes` are those of a key and of a value."""
        key, value = (jnp.zeros((layers, batch, heads, length, size), dtype) for size in sizes)
        return cls(key, value, jnp.zeros((batch,), jnp.int32))

    @property
    def capacity(self) -> int:
        """The number of slots of a row."""
        return self.key[0].shape[2]

    def slots(self, length: int) -> jax.Array:
        """[B, T] int32: slots, and positions, of each row's next `length` tokens."""
        return self.lengths[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :]

    def extend(self, layer: jax.Array | int, key: jax.Array, value: jax.Array) -> tuple["Cache", jax.Array, jax.Array]:
        """Append key and value [B, T, G, H] of a layer; returns the cache, and all keys and values of that layer.

        `lengths` stay until `advance`, since every layer writes to the same slots.
        """
        rows, slots = jnp.arange(key.shape[0])[:, None], self.slots(key.shape[1])

        def write(old, new):
            # mode="drop": slots beyond the end are padding of rows that are nearly full.
            if isinstance(old, tuple):
                one = old[layer].at[rows, :, slots].set(new.astype(old[layer].dtype), mode="drop")
                return (*old[:layer], one, *old[layer + 1 :])
            return old.at[layer, rows, :, slots].set(new.astype(old.dtype), mode="drop")

        cache = self.replace(key=write(self.key, key), value=write(self.value, value))
        return cache, *(jnp.swapaxes(stored[layer], 1, 2) for stored in (cache.key, cache.value))

    def advance(self, length: int, segments: jax.Array | None) -> "Cache":
        """Count `length` more tokens a row, or those with nonzero segments [B, T]."""
        added = length if segments is None else (segments != 0).sum(-1, dtype=jnp.int32)
        return self.replace(lengths=self.lengths + added)

    def take(self, rows: jax.Array) -> "Cache":
        """The cache of a batch made of `rows` [B'] of this one, as beam search reorders them."""
        return self.replace(key=_take(self.key, rows), value=_take(self.value, rows), lengths=self.lengths[rows])


@struct.dataclass
class SourceCache:
    """Keys and values of every layer's cross-attention, computed once from the encoder's output."""

    per_prompt: ClassVar[bool] = True  # samples of one prompt share it

    key: PerLayer  # [L, B, N, S, H]
    value: PerLayer  # [L, B, N, S, H]
    valid: jax.Array  # [B, S] bool: not padding

    def layer(self, layer: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, S, N, H] of a layer."""
        return jnp.swapaxes(self.key[layer], 1, 2), jnp.swapaxes(self.value[layer], 1, 2)

    def take(self, rows: jax.Array) -> "SourceCache":
        """The cache of a batch made of `rows` [B'] of this one."""
        return SourceCache(_take(self.key, rows), _take(self.value, rows), self.valid[rows])


def _take(stored: PerLayer, rows: jax.Array) -> PerLayer:
    return tuple(one[rows] for one in stored) if isinstance(stored, tuple) else stored[:, rows]
