"""Memory of recurrent attention: hidden states that a lane of the batch carries to its next segment.

Transformer-XL (Dai et al. 2019, section 3.2) and XLNet attend to [memory ; segment]. The trainer stores a `Memory` with
each checkpoint, so the names of its fields are part of the format.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct


@struct.dataclass
class Memory:
    """Inputs of every layer at the last M positions, and how many of them count."""

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
