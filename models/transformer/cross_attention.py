"""Cross-attention: queries from the decoder, keys and values from the encoder's output."""

import functools
from collections.abc import Callable

import jax
from flax import linen as nn

from models.attention import attend
from models.layers.linear import Linear
from models.transformer.cache import SourceCache
from models.transformer.context import Context


class CrossAttention(nn.Module):
    """Cross-attention (Vaswani et al. 2017, section 3.2.3). Scores are scaled by `scale`, None means 1/sqrt(H)."""

    width: int
    heads: int
    head_size: int
    bias: bool
    scale: float | None
    dropout: float
    query_std: float
    std: float
    out_std: float
    initializer: Callable
    backend: str
    dtype: str
    param_dtype: str

    def setup(self):
        split = {"heads": self.heads, "head_size": self.head_size}
        shared = {"bias": self.bias, "initializer": self.initializer}
        shared |= {"dtype": self.dtype, "param_dtype": self.param_dtype}
        project = functools.partial(Linear, {"embed": self.width}, split, **shared)
        self.query, self.key, self.value = project(std=self.query_std), project(std=self.std), project(std=self.std)
        self.output = Linear(split, {"embed": self.width}, std=self.out_std, **shared)

    def __call__(self, x: jax.Array, context: Context, carried: SourceCache | None):
        """x [B, T, D] -> [B, T, D]; the cache is returned unchanged."""
        source = context.source
        # When decoding, keys and values of the source were computed once for all tokens.
        key, value = self.keys_and_values(source.hidden) if carried is None else carried.layer(context.layer)
        y = attend(
            self._constrain(self.query(x)),
            key,
            value,
            source.mask,
            dropout_rate=self.dropout if context.train else 0.0,
            dropout_rng=self.make_rng("dropout") if context.train and self.dropout else None,
            dropout_rows=context.row,
            scale=self.scale,
            backend=self.backend,
        )
        return self.output(self._constrain(y)), carried

    def keys_and_values(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, S, N, H] of an encoder's output [B, S, D]."""
        return self._constrain(self.key(hidden)), self._constrain(self.value(hidden))

    def _constrain(self, y):
        return nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
