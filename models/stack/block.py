"""The Transformer block: self-attention, then feed-forward, each with its norm and its residual."""

import math
from collections.abc import Callable

import jax
from flax import linen as nn

from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import Pattern
from models.parts.layers import Linear, dropout, uniform
from models.parts.positions import rotate
from models.stack.cache import Cache

PLACEMENTS = ("pre", "post", "replace")


class SelfAttention(nn.Module):
    """Queries, keys and values of x, attention between them, and the output projection.

    `kv_heads` below `heads` shares each key/value head among heads / kv_heads queries (Ainslie et al. 2023). Queries
    and keys are of `query_size`, values of `head_size`. `fused_glorot` starts the three projections as one uniform
    matrix of variance 2 / (inputs + outputs) (Glorot and Bengio 2010), as PyTorch's MultiheadAttention does.
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
    std: float
    out_std: float
    fused_glorot: bool
    attention_path: str
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(
        self, x: jax.Array, *, mask: Mask, positions: jax.Array, train: bool, cache: Cache | None = None
    ) -> tuple[jax.Array, Cache | None]:
        """x [B, T, D], positions [B, T] -> [B, T, D] and the cache with this layer's keys and values."""
        kind = {"bias": self.bias, "dtype": self.dtype, "param_dtype": self.param_dtype}

        start = {"std": self.std}
        if self.fused_glorot:
            outputs = self.heads * self.query_size + self.kv_heads * (self.query_size + self.head_size)
            start = {"std": math.sqrt(2 / (self.width + outputs)), "initialiser": uniform}

        def project(name, axis, heads, size):
            y = Linear({"embed": self.width}, {axis: heads, "head_size": size}, name=name, **start, **kind)(x)
            return nn.with_logical_constraint(y, ("batch", "length", axis, "head_size"))

        query = project("query", "heads", self.heads, self.query_size)
        key = project("key", "kv_heads", self.kv_heads, self.query_size)
        value = project("value", "kv_heads", self.kv_heads, self.head_size)
        if self.rotary:
            query, key = rotate(query, positions), rotate(key, positions)
        if cache is not None:
            cache = cache.extend(key, value)
            key, value = cache.key[cache.layer], cache.value[cache.layer]
        random = self.make_rng("dropout") if train and self.dropout else None
        rate = self.dropout if train else 0.0
        y = attend(
            query,
            key,
            value,
            mask.replace(pattern=self.pattern),
            dropout_rate=rate,
            dropout_rng=random,
            path=self.attention_path,
        )
        y = nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
        inputs = {"heads": self.heads, "head_size": self.head_size}
        return Linear(inputs, {"embed": self.width}, std=self.out_std, name="output", **kind)(y), cache


class Block(nn.Module):
    """x -> x + attention(x), then x -> x + feed_forward(x), with norms placed as `placement` says.

    pre:      x + f(norm(x))            GPT-2 (Radford et al. 2019, section 2.3)
    post:     norm(x + f(x))            the original Transformer and GPT
    replace:  norm(x) + f(norm(x))      the normalised value becomes the residual stream
    """

    attention: nn.Module
    feed_forward: nn.Module
    norm: Callable[..., nn.Module]
    placement: str
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, *, mask: Mask, positions: jax.Array, train: bool, cache: Cache | None = None):
        """x [B, T, D] -> [B, T, D] and the cache, extended by this layer."""

        def residual(x, branch, norm):
            random = self.make_rng("dropout") if train and self.dropout else None
            if self.placement == "post":
                return norm(x + dropout(branch(x), self.dropout, random))
            normed = norm(x)
            stream = normed if self.placement == "replace" else x
            return stream + dropout(branch(normed), self.dropout, random)

        def attention(x):
            nonlocal cache
            y, cache = self.attention(x, mask=mask, positions=positions, train=train, cache=cache)
            return y

        def feed_forward(x):
            return self.feed_forward(x, train=train)

        x = residual(x, attention, self.norm(name="attention_norm"))
        x = residual(x, feed_forward, self.norm(name="feed_forward_norm"))
        return nn.with_logical_constraint(x, ("batch", "length", None)), cache
