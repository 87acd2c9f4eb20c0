"""The branch of relative self-attention: by content and distance over [memory ; x] (Dai et al. 2019, section 3.3).

And by segment, with a second stream that asks (Yang et al. 2019, sections 2.3 and 2.5).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.biases import ByMatch
from models.attention.masks import Mask
from models.attention.relative import attend_relative
from models.layers.init import normal
from models.layers.linear import Linear
from models.transformer.cache import Cache
from models.transformer.context import Kinds, Signals
from models.transformer.memory import Memory


class RelativeSelfAttention(nn.Module):
    """Its queries look at what the layer's memory holds, then at x; there are no biases but u and v.

    Where the signals say so, the last rows of x only ask: nothing looks at them, and no memory keeps them. With
    `by_segment` a third product tells keys of the query's own segment from others. `offsets` makes matrices of u, v and
    s, which decay, as XLNet's release has them. `reuse`: so many rows of x are remembered, all where it is 0.
    """

    width: int
    heads: int
    head_size: int
    by_segment: bool
    offsets: bool
    reuse: int
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

        T = x.shape[1] - (signals.asking.rows if signals.asking else 0)
        seen = x[:, :T]
        if isinstance(carried, Memory):
            carried, seen = carried.extend(signals.layer, seen, self.reuse)
        query, key, value = project("query", x), project("key", seen), project("value", seen)
        if isinstance(carried, Cache):
            carried, key, value = carried.extend(signals.layer, key, value)
        distances = project("distance", signals.distances.rows)
        if signals.distances.backward is not None:
            distances = jnp.take(distances, signals.distances.backward.astype(jnp.int32), axis=0)
        u, v = signals.distances.content_bias, signals.distances.position_bias
        if u is None:
            u, v = self._bias("content"), self._bias("position")
        segments = (self._bias("segment"), self._segments()) if self.by_segment else None

        def attend(query, mask: Mask, kinds: Kinds | None):
            return attend_relative(
                *(query, key, value, distances, u, v, mask),
                more=self._by_segment(query, kinds, *segments) if segments and kinds else None,
                dropout_rate=self.dropout if signals.train else 0.0,
                dropout_rng=self.make_rng("dropout") if signals.train and self.dropout else None,
                dropout_rows=signals.row,
                path=self.attention_path,
            )

        y = attend(query[:, :T], signals.mask, signals.kinds)
        if signals.asking:
            answers = attend(query[:, T:], signals.asking.mask, signals.asking.kinds)
            y = jnp.concatenate([y, answers], axis=1)
        y = nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
        return Linear(split, {"embed": self.width}, name="output", **shared)(y), carried

    def _by_segment(self, query, kinds: Kinds, bias, vectors) -> ByMatch:
        """(q + s) . e, of the vector e for keys of the query's segment and of that for others."""
        by_segment = (query + bias.astype(query.dtype)[None, None]) * self.head_size**-0.5
        products = jnp.einsum("BTNH,ENH->EBNT", by_segment, vectors.astype(query.dtype))
        return ByMatch(products[0], products[1], kinds.query[:, None], kinds.key[:, None])

    def _bias(self, name):
        names, shape = ("heads", "head_size"), (self.heads, self.head_size)
        kind, inputs = ("offset", 1) if self.offsets else ("bias", 0)
        return self.param(f"{name}_{kind}", normal(self.std, *names, inputs=inputs), shape, self.param_dtype)

    def _segments(self):
        names, shape = (None, "heads", "head_size"), (2, self.heads, self.head_size)
        return self.param("segments", normal(self.std, *names), shape, self.param_dtype)
