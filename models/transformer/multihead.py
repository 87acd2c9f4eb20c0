"""Multi-head attention (Vaswani et al. 2017, section 3.2): self-attention, and cross-attention to an encoder's output.

head_n = softmax(scale * x W_query_n (y W_key_n)^T) y W_value_n        y is x, or the encoder's output
output = sum over n of head_n W_output_n
"""

import math
from collections.abc import Callable

import jax
from flax import linen as nn

from models.attention import attend
from models.attention.masks import Mask
from models.attention.patterns import Dense, Pattern
from models.layers.embedding import MAX_WAVELENGTH, rotate
from models.layers.init import uniform
from models.layers.linear import Linear
from models.transformer.adapters import LoRA
from models.transformer.block import Context
from models.transformer.cache import Cache, Memory, SourceCache


class MultiHeadAttention(nn.Module):
    """The fields of both kinds, and what both do alike.

    std, query_std, out_std: standard deviations of the key's and value's, the query's and the output's kernels.
    scale: factor of the scores, None means 1/sqrt(size of a query).
    lora: low-rank changes of the projections.
    """

    width: int
    heads: int
    head_size: int
    bias: bool
    dropout: float
    std: float
    query_std: float
    out_std: float
    initializer: Callable
    backend: str
    dtype: str
    param_dtype: str
    scale: float | None = None
    lora: LoRA = LoRA()

    def linear(self, target, inputs, outputs, std, **options) -> Linear:
        """The projection that LoRA knows as `target`, by axis names and sizes."""
        options = {"bias": self.bias, "std": std, "initializer": self.initializer} | self.lora.of(target) | options
        return Linear(inputs, outputs, dtype=self.dtype, param_dtype=self.param_dtype, **options)

    def attend(self, query, key, value, mask: Mask, context: Context, bias=None) -> jax.Array:
        """Attention [B, T, N, H] with this branch's options."""
        y = attend(
            query,
            key,
            value,
            mask,
            bias=bias,
            dropout_rate=self.dropout if context.train else 0.0,
            dropout_rng=self.make_rng("dropout") if context.train and self.dropout else None,
            dropout_rows=context.row,
            scale=self.scale,
            backend=self.backend,
        )
        return split_heads(y)

    @property
    def inner(self) -> dict[str, int]:
        """Axes of the values: the inputs of the output projection."""
        return {"heads": self.heads, "head_size": self.head_size}


class SelfAttention(MultiHeadAttention):
    """Queries, keys and values from x, or keys and values from [memory ; x].

    kv_heads: heads / kv_heads queries share each key/value head (Ainslie et al. 2023); 0 means `heads`.
    query_size: size of queries and keys, 0 means that of values, `head_size`.
    output_bias: with `bias`, the output projection has one too.
    rotary: queries and keys turn by their positions, which the context has; rope_theta and rope_scaling as of `rotate`.
    qk_norm: makes the norm of each head's query and key (Dehghani et al. 2023, section 2); None: none.
    fused_glorot: the three projections start as one Glorot-uniform matrix, as in PyTorch's MultiheadAttention.
    """

    kv_heads: int = 0
    query_size: int = 0
    pattern: Pattern = Dense()
    output_bias: bool = True
    rotary: bool = False
    rope_theta: float = MAX_WAVELENGTH
    rope_scaling: tuple[float, ...] = ()
    qk_norm: Callable[..., nn.Module] | None = None
    fused_glorot: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, carried: Memory | Cache | None):
        """x [B, T, D] -> [B, T, D], and the memory or cache with this layer's part."""
        groups, query_size = self.kv_heads or self.heads, self.query_size or self.head_size

        def project(name, x, std, axis, heads, size):
            initializer = self.initializer
            if self.fused_glorot:
                # Variance 2 / (inputs + outputs) of the fused matrix (Glorot and Bengio 2010): narrower than of three.
                outputs = self.heads * query_size + groups * (query_size + self.head_size)
                std, initializer = math.sqrt(2 / (self.width + outputs)), uniform
            options = {"initializer": initializer, "name": name}
            y = self.linear(name, {"embed": self.width}, {axis: heads, "head_size": size}, std, **options)(x)
            return split_heads(y, axis)

        seen = x
        if isinstance(carried, Memory):
            carried, seen = carried.extend(context.layer, x)
        query = project("query", x, self.query_std, "heads", self.heads, query_size)
        key = project("key", seen, self.std, "kv_heads", groups, query_size)
        value = project("value", seen, self.std, "kv_heads", groups, self.head_size)
        if self.qk_norm:
            query, key = self.qk_norm(name="query_norm")(query), self.qk_norm(name="key_norm")(key)
        if self.rotary:
            # Rotated before they are cached: a cached key keeps its position, and a token is rotated once. With memory,
            # positions are those of [memory ; x], and the queries' are the last.
            options = self.rope_theta, self.rope_scaling
            query = rotate(query, context.positions[:, -x.shape[1] :], *options)
            key = rotate(key, context.positions, *options)
        if isinstance(carried, Cache):
            carried, key, value = carried.extend(context.layer, key, value)
        y = self.attend(query, key, value, context.mask.replace(pattern=self.pattern), context, context.bias)
        bias = self.bias and self.output_bias
        return self.linear("output", self.inner, {"embed": self.width}, self.out_std, bias=bias, name="output")(
            y
        ), carried


class CrossAttention(MultiHeadAttention):
    """Queries from x, keys and values from the encoder's output (Vaswani et al. 2017, section 3.2.3)."""

    def setup(self):
        embed = {"embed": self.width}
        self.query = self.linear("query", embed, self.inner, self.query_std)
        self.key, self.value = (self.linear(name, embed, self.inner, self.std) for name in ("key", "value"))
        self.output = self.linear("output", self.inner, embed, self.out_std)

    def __call__(self, x: jax.Array, context: Context, carried: SourceCache | None):
        """x [B, T, D] -> [B, T, D]; the cache is returned unchanged."""
        source = context.source
        # When decoding, keys and values of the source were computed once for all tokens.
        key, value = self.keys_and_values(source.hidden) if carried is None else carried.layer(context.layer)
        return self.output(self.attend(split_heads(self.query(x)), key, value, source.mask, context)), carried

    def keys_and_values(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [B, S, N, H] of an encoder's output [B, S, D]."""
        return split_heads(self.key(hidden)), split_heads(self.value(hidden))


def split_heads(y: jax.Array, axis: str = "heads") -> jax.Array:
    """y [B, T, N, H] with its heads split over the mesh."""
    return nn.with_logical_constraint(y, ("batch", "length", axis, "head_size"))
