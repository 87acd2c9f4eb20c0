"""The memory of recurrent attention: what a lane of the batch carries from one segment of its text to the next."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct


@struct.dataclass
class Memory:
    """The inputs of every layer at the last M positions, and how many of them count."""

    hidden: jax.Array  # [L, B, M, D]
    held: jax.Array  # [B] int32: so many of them, at the end, belong to the document in progress

    @classmethod
    def empty(cls, layers: int, lanes: int, length: int, width: int, dtype) -> "Memory":
        """Memory of which nothing is seen until it is filled; each array in a box that names its axes."""
        hidden, held = jnp.zeros((layers, lanes, length, width), dtype), jnp.zeros((lanes,), jnp.int32)
        return cls(
            nn.LogicallyPartitioned(hidden, ("layers", "batch", None, None)),
            nn.LogicallyPartitioned(held, ("batch",)),
        )

    def reset(self, lanes: jax.Array | None) -> "Memory":
        """The same with nothing held by the lanes [B] bool that start afresh."""
        return self if lanes is None else self.replace(held=jnp.where(lanes, 0, self.held))

    def there(self) -> jax.Array:
        """Which positions count: bool [B, M]."""
        M = self.hidden.shape[2]
        return jnp.arange(M)[None, :] >= M - self.held[:, None]

    def extend(self, layer: jax.Array, x: jax.Array, reuse: int = 0) -> tuple["Memory", jax.Array]:
        """The same with input x [B, T, D] of a layer put behind that layer's; and [memory ; x], of M + T positions.

        Of x the first `reuse` positions are remembered, all of them where that is 0. No gradient flows through what is.
        """
        old = jax.lax.stop_gradient(self.hidden[layer].astype(x.dtype))
        seen = jnp.concatenate([old, x], axis=1)
        end = old.shape[1] + min(reuse or x.shape[1], x.shape[1])
        kept = jax.lax.stop_gradient(seen[:, end - old.shape[1] : end])
        return self.replace(hidden=self.hidden.at[layer].set(kept.astype(self.hidden.dtype))), seen

    def hold(self, length: int, segments: jax.Array | None) -> "Memory":
        """The same behind a segment of `length` tokens, whose documents segments [B, T] keep apart."""
        M = self.hidden.shape[2]
        if segments is None:
            return self.replace(held=jnp.minimum(self.held + length, M))
        last = segments[:, -1:]
        run = jnp.cumprod((segments == last)[:, ::-1].astype(jnp.int32), axis=1).sum(1)  # length of the last document
        held = jnp.minimum(jnp.where(run == length, self.held, 0) + run, M)
        return self.replace(held=jnp.where(last[:, 0] == 0, 0, held))
