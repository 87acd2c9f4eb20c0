"""Masks, described rather than materialized.

A `Mask` says which keys each query sees; a backend turns it into whatever its kernel needs. Query i is at key column
p = memory + offset + i, or at query_columns[i], and sees key j when all of these hold:

    causal     j <= p, or j < prefix
    pattern    the pattern admits (p, j)
    segments   query and key have the same segment, which is not 0 (padding)
    key_valid  the key is valid (neither empty memory nor padding of an encoder's output)
    ranks      the key's rank is below the query's (XLNet's factorization order)

A query that sees nothing (padding) gets zeros, never NaN, and no gradient flows through it.
"""

import jax
import jax.numpy as jnp
from flax import struct

from models.attention.patterns import Dense, Pattern, per_head


@struct.dataclass
class Mask:
    """Which keys each query sees: a pytree whose arrays may be traced and whose options are static.

    `Mask()` hides nothing. Transformer-XL's `same_length` is `pattern=Local(memory)`: every query sees M keys.
    """

    causal: bool = struct.field(pytree_node=False, default=False)
    pattern: Pattern = struct.field(pytree_node=False, default=Dense())
    memory: int = struct.field(pytree_node=False, default=0)  # M: keys are [memory ; current], M columns of memory
    offset: jax.Array | None = None  # int [] or [B]: queries start this many columns later (cached decoding)
    query_columns: jax.Array | None = None  # int [B, T]: key columns of queries that are not consecutive
    query_segments: jax.Array | None = None  # int [B, T]
    key_segments: jax.Array | None = None  # int [B, S]; None means the query's own
    key_valid: jax.Array | None = None  # bool [B, S]
    prefix: jax.Array | None = None  # int [B]: number of leading keys that all queries see, causal or not
    query_ranks: jax.Array | None = None  # int [B, T]
    key_ranks: jax.Array | None = None  # int [B, S]

    def features(self) -> frozenset[str]:
        """Names of what this mask uses besides its pattern; backends declare which they support."""
        used = {
            "causal": self.causal,
            "memory": self.memory > 0,
            "offset": self.offset is not None,
            "query_columns": self.query_columns is not None,
            "segments": self.query_segments is not None,
            "key_segments": self.key_segments is not None,
            "key_valid": self.key_valid is not None,
            "prefix": self.prefix is not None,
            "ranks": self.query_ranks is not None,
        }
        return frozenset(name for name, in_use in used.items() if in_use)

    def check(self, T: int, S: int):
        """Assert that fields fit each other and the lengths."""
        for array in (self.query_segments, self.query_ranks, self.query_columns):
            assert array is None or (array.ndim == 2 and array.shape[1] == T)
        for array in (self.key_segments, self.key_valid, self.key_ranks):
            assert array is None or (array.ndim == 2 and array.shape[1] == S)
        # Columns of memory come first, then one for each query.
        assert not self.memory or self.memory + T == S
        assert (self.query_ranks is None) == (self.key_ranks is None)
        if self.key_segments is None:
            assert self.query_segments is None or T == S
        assert self.query_columns is None or (not self.memory and self.offset is None)
        # Without causality all keys are seen anyway.
        assert self.prefix is None or self.causal

    def tile(self, query_start, query_count: int, key_start, key_count: int) -> jax.Array:
        """Visibility of a rectangle of (query, key) pairs, for one pattern: bool [B or 1, 1, queries, keys].

        The starts may be traced.
        """
        # Everything is a formula of iota, or a slice of [B, T]: XLA fuses it into its consumer, and nothing larger than
        # the rectangle exists.
        i = self.positions(query_start + jnp.arange(query_count, dtype=jnp.int32))[..., :, None]
        j = (key_start + jnp.arange(key_count, dtype=jnp.int32))[None, None, None, :]
        seen = jnp.broadcast_to(self.pattern.sees(i, j), jnp.broadcast_shapes(i.shape, j.shape))
        if self.causal:
            past = j <= i
            if self.prefix is not None:
                past |= j < self.prefix[:, None, None, None]
            seen &= past

        def rows(array):
            return jax.lax.dynamic_slice_in_dim(array, query_start, query_count, 1)[:, None, :, None]

        def columns(array):
            return jax.lax.dynamic_slice_in_dim(array, key_start, key_count, 1)[:, None, None, :]

        if self.query_segments is not None:
            # 0 is padding: such a query sees nothing, and no query has the segment of such a key.
            query = rows(self.query_segments)
            key = columns(self.query_segments if self.key_segments is None else self.key_segments)
            seen &= (query == key) & (query != 0)
        if self.key_valid is not None:
            seen &= columns(self.key_valid)
        if self.query_ranks is not None:
            # Strictly below: a query whose rank is its token's does not see that token.
            seen &= columns(self.key_ranks) < rows(self.query_ranks)
        return seen

    def positions(self, index: jax.Array) -> jax.Array:
        """Key column of each query in `index` [T]: int [B or 1, 1, T]."""
        if self.query_columns is not None:
            return jnp.take(self.query_columns, index, axis=1)[:, None, :]
        # Query i is M + i columns from the left.
        position = (self.memory + index)[None, None, :]
        if self.offset is None:
            return position
        return position + jnp.reshape(jnp.asarray(self.offset, jnp.int32), (-1, 1, 1))

    def dense(self, T: int, S: int, heads: int = 1) -> jax.Array:
        """The whole matrix, for the reference and for tests: bool [B or 1, 1 or heads, T, S]."""
        self.check(T, S)
        patterns = per_head(self.pattern, heads)
        if len(set(patterns)) == 1:
            return self.replace(pattern=patterns[0]).tile(0, T, 0, S)
        return jnp.concatenate([self.replace(pattern=one).tile(0, T, 0, S) for one in patterns], axis=1)
