"""Self-attention: queries, keys and values from x, and the output projection."""

import math
from collections.abc import Callable

import jax
from flax import linen as nn

from models.attention import attend
from models.attention.patterns import Pattern
from models.layers.embedding import rotate
from models.layers.init import uniform
from models.layers.linear import Linear
from models.transformer.cache import Cache
from models.transformer.context import Context
from models.transformer.memory import Memory


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2).

    kv_heads: below `heads`, heads / kv_heads queries share each key/value head (Ainslie et al. 2023).
    query_size: size of queries and keys; values have `head_size`.
    fused_glorot: the three projections start as one Glorot-uniform matrix, as in PyTorch's MultiheadAttention.
    scale: factor of the scores, None means 1/sqrt(query_size).
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
    initializer: Callable
    fused_glorot: bool
    scale: float | None
    backend: str
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, carried: Memory | Cache | None):
        """x [B, T, D] -> [B, T, D], and the memory or cache with this layer's part."""
        shared = {"bias": self.bias, "dtype": self.dtype, "param_dtype": self.param_dtype}

        def project(name, x, std, axis, heads, size):
            init = {"std": std, "initializer": self.initializer}
            if self.fused_glorot:
                # Variance 2 / (inputs + outputs) of the fused matrix (Glorot and Bengio 2010): narrower than of three.
                outputs = self.heads * self.query_size + self.kv_heads * (self.query_size + self.head_size)
                init = {"std": math.sqrt(2 / (self.width + outputs)), "initializer": uniform}
            y = Linear({"embed": self.width}, {axis: heads, "head_size": size}, name=name, **init, **shared)(x)
            return nn.with_logical_constraint(y, ("batch", "length", axis, "head_size"))

        seen = x
        if isinstance(carried, Memory):
            carried, seen = carried.extend(context.layer, x)
        query = project("query", x, self.query_std, "heads", self.heads, self.query_size)
        key = project("key", seen, self.std, "kv_heads", self.kv_heads, self.query_size)
        value = project("value", seen, self.std, "kv_heads", self.kv_heads, self.head_size)
        if self.rotary:
            # Rotated before they are cached: a cached key keeps its position, and a token is rotated once.
            query = rotate(query, context.positions[:, -x.shape[1] :])
            key = rotate(key, context.positions)
        if isinstance(carried, Cache):
            carried, key, value = carried.extend(context.layer, key, value)
        y = attend(
            query,
            key,
            value,
            context.mask.replace(pattern=self.pattern),
            bias=context.bias,
            dropout_rate=self.dropout if context.train else 0.0,
            dropout_rng=self.make_rng("dropout") if context.train and self.dropout else None,
            dropout_rows=context.row,
            scale=self.scale,
            backend=self.backend,
        )
        y = nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
        inputs = {"heads": self.heads, "head_size": self.head_size}
        init = {"std": self.out_std, "initializer": self.initializer}
        return Linear(inputs, {"embed": self.width}, name="output", **init, **shared)(y), carried
