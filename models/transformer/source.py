"""What decoding carries of the text that a decoder looks at: the keys and values of the encoder's output."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from models.transformer.cache import taken


@struct.dataclass
class SourceCache:
    """Keys and values of every layer's cross-attention, made once; and which of them are there."""

    of_prompt: ClassVar[bool] = True  # all that is written for one text shares it

    key: jax.Array | tuple[jax.Array, ...]  # [L, B, N, S, H], or each layer's, and heads first, as in a Cache
    value: jax.Array | tuple[jax.Array, ...]  # [L, B, N, S, H]
    valid: jax.Array  # [B, S] bool: not padding

    def of_layer(self, layer: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, S, N, H] of a layer."""
        return jnp.swapaxes(self.key[layer], 1, 2), jnp.swapaxes(self.value[layer], 1, 2)

    def take(self, rows: jax.Array) -> "SourceCache":
        """The same of a batch whose rows are `rows` [B'] of this one's: beams that part or die."""
        return SourceCache(taken(self.key, rows), taken(self.value, rows), self.valid[rows])
