"""Who may look at whom, described rather than materialised.

A `Mask` says which keys each query sees; a path of `models.attention` turns it into whatever its kernel wants.
Query i stands at key column p = memory + offset + i, or at places[i], and sees key j when all of these hold:

    causal     j <= p, or j < prefix
    pattern    the pattern admits (p, j)
    segments   query and key carry the same segment, which is not 0 (0 marks padding)
    key_valid  the key is there (not a hole of a cache, nor padding of an encoder's output)
    ranks      the key's rank is below the query's (a permutation's factorisation order, XLNet)

A query that sees nothing (padding) is given zeros, never NaN, and no gradient flows through it.
"""

import jax
import jax.numpy as jnp
from flax import struct

from models.attention.patterns import Dense, Pattern, per_head
from models.errors import ModelError


@struct.dataclass
class Mask:
    """A description of visibility: a pytree whose arrays may be traced and whose options are static.

    `Mask()` hides nothing. `same_length` of Transformer-XL is `pattern=Local(memory)`: every query sees as many keys.
    """

    causal: bool = struct.field(pytree_node=False, default=False)
    pattern: Pattern = struct.field(pytree_node=False, default=Dense())
    memory: int = struct.field(pytree_node=False, default=0)  # M: keys are [memory ; current], M columns of memory
    offset: jax.Array | None = None  # int [] or [B]: queries start this many columns further on (cached decoding)
    places: jax.Array | None = None  # int [B, T]: key columns of queries that do not stand one after another
    query_segments: jax.Array | None = None  # int [B, T]
    key_segments: jax.Array | None = None  # int [B, S]; None means the query's own
    key_valid: jax.Array | None = None  # bool [B, S]
    prefix: jax.Array | None = None  # int [B]: so many leading keys are seen by all queries, causal or not
    query_ranks: jax.Array | None = None  # int [B, T]
    key_ranks: jax.Array | None = None  # int [B, S]

    def features(self) -> frozenset[str]:
        """Names of what this mask uses besides its pattern, for paths to say what they support."""
        used = {
            "causal": self.causal,
            "memory": self.memory > 0,
            "offset": self.offset is not None,
            "places": self.places is not None,
            "segments": self.query_segments is not None,
            "key_segments": self.key_segments is not None,
            "key_valid": self.key_valid is not None,
            "prefix": self.prefix is not None,
            "ranks": self.query_ranks is not None,
        }
        return frozenset(name for name, there in used.items() if there)

    def check(self, T: int, S: int):
        """Raise ModelError where the description contradicts itself or the lengths."""
        if self.memory and self.memory + T != S:
            raise ModelError(
                f"mask.memory is {self.memory} for {T} queries, so there must be {self.memory + T} keys, not {S}; "
                "keys are the memory followed by the current segment"
            )
        if (self.query_ranks is None) != (self.key_ranks is None):
            raise ModelError("mask.query_ranks and mask.key_ranks go together; give both")
        if self.query_segments is None and self.key_segments is not None:
            raise ModelError("mask.key_segments was given without mask.query_segments; give both")
        if self.places is not None and (self.memory or self.offset is not None):
            raise ModelError("mask.places are key columns already; give no mask.memory and no mask.offset with them")
        arrays = {
            "query_segments": (self.query_segments, T),
            "query_ranks": (self.query_ranks, T),
            "places": (self.places, T),
            "key_segments": (self.key_segments, S),
            "key_valid": (self.key_valid, S),
            "key_ranks": (self.key_ranks, S),
        }
        for name, (array, length) in arrays.items():
            if array is not None and (array.ndim != 2 or array.shape[1] != length):
                raise ModelError(f"mask.{name} has shape {array.shape}; it must be [batch, {length}]")
        if self.query_segments is not None and self.key_segments is None and S != T:
            raise ModelError(f"mask.key_segments is needed where keys ({S}) are not the queries ({T})")
        if self.prefix is not None and not self.causal:
            raise ModelError("mask.prefix only means something with causal=True; drop it or set causal")

    def tile(self, query_start, query_count: int, key_start, key_count: int) -> jax.Array:
        """Visibility of a rectangle of (query, key) pairs, for one pattern: bool [B or 1, 1, queries, keys].

        The starts may be traced; nothing larger than the rectangle is built.
        """
        i = self.positions(query_start + jnp.arange(query_count, dtype=jnp.int32))[..., :, None]
        j = (key_start + jnp.arange(key_count, dtype=jnp.int32))[None, None, None, :]
        seen = jnp.broadcast_to(self.pattern.sees(i, j), jnp.broadcast_shapes(i.shape, j.shape))
        if self.causal:
            before = j <= i
            if self.prefix is not None:
                before |= j < self.prefix[:, None, None, None]
            seen &= before

        def rows(array):
            return jax.lax.dynamic_slice_in_dim(array, query_start, query_count, 1)[:, None, :, None]

        def columns(array):
            return jax.lax.dynamic_slice_in_dim(array, key_start, key_count, 1)[:, None, None, :]

        if self.query_segments is not None:
            query = rows(self.query_segments)
            key = columns(self.query_segments if self.key_segments is None else self.key_segments)
            seen &= (query == key) & (query != 0)
        if self.key_valid is not None:
            seen &= columns(self.key_valid)
        if self.query_ranks is not None:
            seen &= columns(self.key_ranks) < rows(self.query_ranks)
        return seen

    def positions(self, index: jax.Array) -> jax.Array:
        """Key column at which each query of `index` [T] stands: int [B or 1, 1, T]."""
        if self.places is not None:
            return jnp.take(self.places, index, axis=1)[:, None, :]
        position = (self.memory + index)[None, None, :]
        if self.offset is None:
            return position
        return position + jnp.reshape(jnp.asarray(self.offset, jnp.int32), (-1, 1, 1))

    def dense(self, T: int, S: int, heads: int = 1) -> jax.Array:
        """The whole matrix, for the oracle and for tests: bool [B or 1, 1 or heads, T, S]."""
        self.check(T, S)
        patterns = per_head(self.pattern, heads)
        if len(set(patterns)) == 1:
            return self.replace(pattern=patterns[0]).tile(0, T, 0, S)
        return jnp.concatenate([self.replace(pattern=one).tile(0, T, 0, S) for one in patterns], axis=1)
