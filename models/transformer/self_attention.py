"""The branch of self-attention: queries, keys and values of x, attention between them, the output projection."""

import math
from collections.abc import Callable

import jax
from flax import linen as nn

from models.attention import attend
from models.attention.patterns import Pattern
from models.layers.init import uniform
from models.layers.linear import Linear
from models.layers.positions import rotate
from models.transformer.cache import Cache
from models.transformer.context import Signals
from models.transformer.memory import Memory


class SelfAttention(nn.Module):
    """`kv_heads` below `heads` shares each key/value head among heads / kv_heads queries (Ainslie et al. 2023).

    Queries and keys are of `query_size`, values of `head_size`. `fused_glorot` starts the three projections as one
    uniform matrix of variance 2 / (inputs + outputs) (Glorot and Bengio 2010), as PyTorch's MultiheadAttention does.
    Scores are scaled by `scale`, by 1/sqrt(query_size) where that is None.
    """

    width: int
    heads: int
    kv_heads: int
    head_size: int
    query_size: int
    pattern: Pattern
    rotary: bool
    bias: bool
    dropout: float
    query_std: float
    std: float
    out_std: float
    initialiser: Callable
    fused_glorot: bool
    scale: float | None
    attention_path: str
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, signals: Signals, carried: Memory | Cache | None):
        """x [B, T, D] -> [B, T, D], and the memory or cache with this layer's share, all of which is seen."""
        shared = {"bias": self.bias, "dtype": self.dtype, "param_dtype": self.param_dtype}

        def project(name, x, std, axis, heads, size):
            start = {"std": std, "initialiser": self.initialiser}
            if self.fused_glorot:
                outputs = self.heads * self.query_size + self.kv_heads * (self.query_size + self.head_size)
                start = {"std": math.sqrt(2 / (self.width + outputs)), "initialiser": uniform}
            y = Linear({"embed": self.width}, {axis: heads, "head_size": size}, name=name, **start, **shared)(x)
            return nn.with_logical_constraint(y, ("batch", "length", axis, "head_size"))

        seen = x
        if isinstance(carried, Memory):
            carried, seen = carried.extend(signals.layer, x)
        query = project("query", x, self.query_std, "heads", self.heads, self.query_size)
        key = project("key", seen, self.std, "kv_heads", self.kv_heads, self.query_size)
        value = project("value", seen, self.std, "kv_heads", self.kv_heads, self.head_size)
        if self.rotary:
            query = rotate(query, signals.positions[:, -x.shape[1] :])
            key = rotate(key, signals.positions)
        if isinstance(carried, Cache):
            carried, key, value = carried.extend(signals.layer, key, value)
        y = attend(
            query,
            key,
            value,
            signals.mask.replace(pattern=self.pattern),
            bias=signals.bias,
            dropout_rate=self.dropout if signals.train else 0.0,
            dropout_rng=self.make_rng("dropout") if signals.train and self.dropout else None,
            dropout_rows=signals.row,
            scale=self.scale,
            path=self.attention_path,
        )
        y = nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
        inputs = {"heads": self.heads, "head_size": self.head_size}
        start = {"std": self.out_std, "initialiser": self.initialiser}
        return Linear(inputs, {"embed": self.width}, name="output", **start, **shared)(y), carried
