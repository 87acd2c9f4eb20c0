"""The key/value cache of incremental decoding: an explicit pytree, threaded through the model and returned."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Cache:
    """Keys and values of the tokens seen so far.

    The token at position p of row b lies in slot p, whatever the other rows hold: prompts of different length are
    padded on the right, and a row's next token overwrites its padding. A slot at or beyond `lengths` is never
    attended to, because no query has reached its position yet. Heads come before slots, as attention's products want
    them: otherwise every token's step would turn all that is held. Those of all layers are one array, or, `apart`, a
    tuple with each layer's.
    """

    of_prompt: ClassVar[bool] = False  # each row has its own

    key: jax.Array | tuple[jax.Array, ...]  # [L, B, G, S, H]
    value: jax.Array | tuple[jax.Array, ...]  # [L, B, G, S, H], where H may be another than the keys'
    lengths: jax.Array  # [B] int32, tokens held by each row

    @classmethod
    def empty(cls, layers: int, batch: int, length: int, heads: int, sizes: tuple[int, int], dtype) -> "Cache":
        """A cache of `length` slots a row that holds nothing yet; `sizes` are those of a key and of a value."""
        key, value = (jnp.zeros((layers, batch, heads, length, size), dtype) for size in sizes)
        return cls(key, value, jnp.zeros((batch,), jnp.int32))

    @property
    def room(self) -> int:
        """How many tokens a row may hold."""
        return self.key[0].shape[2]

    def slots(self, length: int) -> jax.Array:
        """[B, T] int32: where each row's next `length` tokens go, which is also their position."""
        return self.lengths[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :]

    def extend(self, layer: jax.Array | int, key: jax.Array, value: jax.Array) -> tuple["Cache", jax.Array, jax.Array]:
        """The same with key and value [B, T, G, H] of a layer behind each row's tokens; and all of that layer's."""
        rows, slots = jnp.arange(key.shape[0])[:, None], self.slots(key.shape[1])

        def write(old, new):
            # Slots beyond the end are dropped: the padding of a row that is nearly full falls there.
            if isinstance(old, tuple):
                one = old[layer].at[rows, :, slots].set(new.astype(old[layer].dtype), mode="drop")
                return (*old[:layer], one, *old[layer + 1 :])
            return old.at[layer, rows, :, slots].set(new.astype(old.dtype), mode="drop")

        cache = self.replace(key=write(self.key, key), value=write(self.value, value))
        return cache, *(jnp.swapaxes(held[layer], 1, 2) for held in (cache.key, cache.value))

    def hold(self, length: int, segments: jax.Array | None) -> "Cache":
        """The same behind `length` tokens a row, of which segments [B, T], if given, say by 0 which are padding."""
        added = length if segments is None else (segments != 0).sum(-1, dtype=jnp.int32)
        return self.replace(lengths=self.lengths + added)

    def take(self, rows: jax.Array) -> "Cache":
        """The cache of a batch whose rows are `rows` [B'] of this one's: beams that part or die."""
        return self.replace(key=taken(self.key, rows), value=taken(self.value, rows), lengths=self.lengths[rows])


def taken(held: jax.Array | tuple[jax.Array, ...], rows: jax.Array) -> jax.Array | tuple[jax.Array, ...]:
    """The `rows` of what is held for all layers, [L, B, ...] or each layer's [B, ...]."""
    return tuple(one[rows] for one in held) if isinstance(held, tuple) else held[:, rows]
