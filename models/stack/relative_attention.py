"""The branch of relative self-attention: by content and distance over [memory ; x] (Dai et al. 2019, section 3.3)."""

import jax
from flax import linen as nn

from models.attention.relative import attend_relative
from models.parts.initialisers import normal
from models.parts.linear import Linear
from models.stack.cache import Cache
from models.stack.memory import Memory
from models.stack.signals import Signals


class RelativeSelfAttention(nn.Module):
    """Its queries look at what the layer's memory holds, then at x; there are no biases but u and v."""

    width: int
    heads: int
    head_size: int
    dropout: float
    std: float
    attention_path: str
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, signals: Signals, carried: Memory | Cache | None):
        """x [B, T, D] -> [B, T, D], and the memory or cache with this layer's share."""
        shared = {"bias": False, "std": self.std, "dtype": self.dtype, "param_dtype": self.param_dtype}
        split = {"heads": self.heads, "head_size": self.head_size}

        def project(name, x):
            return Linear({"embed": self.width}, split, name=name, **shared)(x)

        seen = x
        if isinstance(carried, Memory):
            carried, seen = carried.extend(signals.layer, x)
        query, key, value = project("query", x), project("key", seen), project("value", seen)
        if isinstance(carried, Cache):
            carried, key, value = carried.extend(signals.layer, key, value)
        u, v = signals.distances.content_bias, signals.distances.position_bias
        if u is None:
            u, v = (self._bias(name) for name in ("content_bias", "position_bias"))
        y = attend_relative(
            *(query, key, value, project("distance", signals.distances.rows), u, v, signals.mask),
            dropout_rate=self.dropout if signals.train else 0.0,
            dropout_rng=self.make_rng("dropout") if signals.train and self.dropout else None,
            dropout_rows=signals.row,
            path=self.attention_path,
        )
        y = nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
        return Linear(split, {"embed": self.width}, name="output", **shared)(y), carried

    def _bias(self, name):
        names, shape = ("heads", "head_size"), (self.heads, self.head_size)
        return self.param(name, normal(self.std, *names, inputs=0), shape, self.param_dtype)
