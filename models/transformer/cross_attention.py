"""The branch of cross-attention: queries of x, keys and values of an encoder's output."""

import functools
from collections.abc import Callable

import jax
from flax import linen as nn

from models.attention import attend
from models.layers.linear import Linear
from models.transformer.context import Signals
from models.transformer.source import SourceCache


class CrossAttention(nn.Module):
    """Where decoding carries the keys and values of all layers, they are read instead of made (Vaswani et al. 2017).

    Scores are scaled by `scale`, by 1/sqrt(H) where that is None.
    """

    width: int
    heads: int
    head_size: int
    bias: bool
    scale: float | None
    dropout: float
    query_std: float
    std: float
    out_std: float
    initialiser: Callable
    attention_path: str
    dtype: str
    param_dtype: str

    def setup(self):
        split = {"heads": self.heads, "head_size": self.head_size}
        shared = {"bias": self.bias, "initialiser": self.initialiser}
        shared |= {"dtype": self.dtype, "param_dtype": self.param_dtype}
        project = functools.partial(Linear, {"embed": self.width}, split, **shared)
        self.query, self.key, self.value = project(std=self.query_std), project(std=self.std), project(std=self.std)
        self.output = Linear(split, {"embed": self.width}, std=self.out_std, **shared)

    def __call__(self, x: jax.Array, signals: Signals, carried: SourceCache | None):
        """x [B, T, D] -> [B, T, D]; what is carried stays as it is."""
        source = signals.source
        if carried is None:
            key, value = self.keys_and_values(source.hidden)
        else:
            key, value = carried.of_layer(signals.layer)
        y = attend(
            self._split(self.query(x)),
            key,
            value,
            source.mask,
            dropout_rate=self.dropout if signals.train else 0.0,
            dropout_rng=self.make_rng("dropout") if signals.train and self.dropout else None,
            dropout_rows=signals.row,
            scale=self.scale,
            path=self.attention_path,
        )
        return self.output(self._split(y)), carried

    def keys_and_values(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, S, N, H] of an encoder's output [B, S, D]."""
        return self._split(self.key(hidden)), self._split(self.value(hidden))

    def _split(self, y):
        return nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
