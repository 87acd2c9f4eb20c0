"""Pytrees that a model takes and returns: key/value caches of decoding, and the memory of recurrent attention."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
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
        # Prompts are padded on the right: the next token overwrites the padding.
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


@struct.dataclass
class Memory:
    """Inputs of every layer at a lane's last M positions, and how many of them count.

    Transformer-XL (Dai et al. 2019, section 3.2) and XLNet attend to [memory ; segment]. Checkpoints have a `Memory`,
    so the names of its fields are part of their format.
    """

    hidden: jax.Array  # [L, B, M, D]
    held: jax.Array  # [B] int32: the last `held` of the M positions belong to the document in progress

    @classmethod
    def empty(cls, layers: int, lanes: int, length: int, width: int, dtype) -> "Memory":
        """Memory in which no position counts; arrays are boxed with the names of their axes."""
        hidden, held = jnp.zeros((layers, lanes, length, width), dtype), jnp.zeros((lanes,), jnp.int32)
        return cls(
            nn.LogicallyPartitioned(hidden, ("layers", "batch", None, None)),
            nn.LogicallyPartitioned(held, ("batch",)),
        )

    def reset(self, lanes: jax.Array | None) -> "Memory":
        """Forget everything in the lanes [B] bool that start a new stream."""
        return self if lanes is None else self.replace(held=jnp.where(lanes, 0, self.held))

    def valid(self) -> jax.Array:
        """Which positions count: bool [B, M]."""
        M = self.hidden.shape[2]
        return jnp.arange(M)[None, :] >= M - self.held[:, None]

    def extend(self, layer: jax.Array, x: jax.Array, reuse: int = 0) -> tuple["Memory", jax.Array]:
        """Remember input x [B, T, D] of a layer; returns the memory, and [memory ; x] of M + T positions.

        Only the first `reuse` positions of x are remembered, 0 means all.
        """
        # Stopped twice: the old states came from another step, the new ones serve the next.
        old = jax.lax.stop_gradient(self.hidden[layer].astype(x.dtype))
        seen = jnp.concatenate([old, x], axis=1)
        # The newest M of the old states and the first `reuse` new ones.
        end = old.shape[1] + min(reuse or x.shape[1], x.shape[1])
        new = jax.lax.stop_gradient(seen[:, end - old.shape[1] : end])
        return self.replace(hidden=self.hidden.at[layer].set(new.astype(self.hidden.dtype))), seen

    def advance(self, length: int, segments: jax.Array | None) -> "Memory":
        """Count a segment of `length` tokens, in which segments [B, T] separate documents; 0 is padding."""
        M = self.hidden.shape[2]
        if segments is None:
            return self.replace(held=jnp.minimum(self.held + length, M))
        # Only the last document continues in the next one. Its run, counted from the end, adds to what is held if it
        # fills the segment, and replaces it otherwise.
        last = segments[:, -1:]
        run = jnp.cumprod((segments == last)[:, ::-1].astype(jnp.int32), axis=1).sum(1)
        held = jnp.minimum(jnp.where(run == length, self.held, 0) + run, M)
        return self.replace(held=jnp.where(last[:, 0] == 0, 0, held))
