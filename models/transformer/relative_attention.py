"""Relative self-attention by content and distance over [memory ; x] (Dai et al. 2019, section 3.3).

With XLNet's additions: attention by segment and the query stream (Yang et al. 2019, sections 2.3 and 2.5).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.biases import ByMatch
from models.attention.masks import Mask
from models.attention.relative import attend_relative
from models.layers.init import normal
from models.layers.linear import Linear
from models.transformer.adapters import LoRA
from models.transformer.block import Context, SegmentIds
from models.transformer.cache import Cache, Memory


class RelativeSelfAttention(nn.Module):
    """Queries read the layer's memory, then x. Projections have no biases; u and v take their part.

    With a query stream in the context, its rows, the last of x, are queries only: nothing reads or remembers them.

    segment_attention: a third product distinguishes keys of the query's own segment from others.
    bias_matrices: u, v and s count as matrices, which decay, as in XLNet's release.
    reuse: number of leading rows of x that are remembered, 0 means all.
    """

    width: int
    heads: int
    head_size: int
    dropout: float
    std: float
    backend: str
    dtype: str
    param_dtype: str
    segment_attention: bool = False
    bias_matrices: bool = False
    reuse: int = 0
    lora: LoRA = LoRA()

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, carried: Memory | Cache | None):
        """x [B, T, D] -> [B, T, D], and the memory or cache with this layer's part."""
        shared = {"bias": False, "std": self.std, "dtype": self.dtype, "param_dtype": self.param_dtype}
        split = {"heads": self.heads, "head_size": self.head_size}

        def project(name, x):
            return Linear({"embed": self.width}, split, name=name, **shared, **self.lora.of(name))(x)

        T = x.shape[1] - (context.query_stream.length if context.query_stream else 0)
        seen = x[:, :T]
        if isinstance(carried, Memory):
            carried, seen = carried.extend(context.layer, seen, self.reuse)
        # One projection makes the queries of both streams, since they share weights (Yang et al. 2019, section 2.3).
        query, key, value = project("query", x), project("key", seen), project("value", seen)
        if isinstance(carried, Cache):
            carried, key, value = carried.extend(context.layer, key, value)
        # W_k,R is apart from W_k,E: keys by distance and by content (section 3.3).
        distances = project("distance", context.distances.rows)
        if context.distances.backward is not None:  # [2, R, N, H] -> [B, R, N, H]
            distances = jnp.take(distances, context.distances.backward.astype(jnp.int32), axis=0)
        u, v = context.distances.content_bias, context.distances.position_bias
        if u is None:
            u, v = self._bias("content"), self._bias("position")
        segments = (self._bias("segment"), self._segment_vectors()) if self.segment_attention else None

        def attend(query, mask: Mask, ids: SegmentIds | None):
            return attend_relative(
                *(query, key, value, distances, u, v, mask),
                bias=self._segment_bias(query, ids, *segments) if segments and ids else None,
                dropout_rate=self.dropout if context.train else 0.0,
                dropout_rng=self.make_rng("dropout") if context.train and self.dropout else None,
                dropout_rows=context.row,
                backend=self.backend,
            )

        # Content sees itself; the query stream has the same keys under its own mask.
        y = attend(query[:, :T], context.mask, context.segment_ids)
        if context.query_stream:
            g = attend(query[:, T:], context.query_stream.mask, context.query_stream.segment_ids)
            y = jnp.concatenate([y, g], axis=1)
        y = nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
        return Linear(split, {"embed": self.width}, name="output", **shared, **self.lora.of("output"))(y), carried

    def _segment_bias(self, query, ids: SegmentIds, bias, vectors) -> ByMatch:
        """(q + s) . e, with one vector e for keys of the query's segment and one for others."""
        # Two numbers a query, of which each key selects one: no product over keys.
        by_segment = (query + bias.astype(query.dtype)[None, None]) * self.head_size**-0.5
        products = jnp.einsum("BTNH,ENH->EBNT", by_segment, vectors.astype(query.dtype))
        return ByMatch(products[0], products[1], ids.query[:, None], ids.key[:, None])

    def _bias(self, name):
        names, shape = ("heads", "head_size"), (self.heads, self.head_size)
        kind, inputs = ("offset", 1) if self.bias_matrices else ("bias", 0)
        return self.param(f"{name}_{kind}", normal(self.std, *names, inputs=inputs), shape, self.param_dtype)

    def _segment_vectors(self):
        names, shape = (None, "heads", "head_size"), (2, self.heads, self.head_size)
        return self.param("segments", normal(self.std, *names), shape, self.param_dtype)
