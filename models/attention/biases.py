"""Additive attention biases, described rather than materialized: a backend makes the tile that it works on.

    Stored       an array, with an entry for every pair
    ByDistance   a product of queries with a key for each distance (Transformer-XL; in `relative`)
    ByMatch      two numbers for each query, one of them for keys of the same segment (XLNet)
    ByBucket     a learned number for each head and bucket of distances (T5)
    Sum          several of them

A bias is a pytree whose arrays have the batch and the heads, or 1, as their first two axes. Those with a row for each
query have it as their third, and `map_queries` reaches them: that is all a backend needs to cut a bias into blocks of
queries, rearrange it, pad it, and join the gradients of blocks.
"""

import functools
import operator
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


class Bias(Protocol):
    """The interface of every bias."""

    stored: bool  # it holds an entry for every pair, so that smaller tiles save nothing
    products: int  # multiply-adds for the bias of one score

    def map_queries(self, function: Callable) -> "Bias":
        """Apply `function` to each array that has a row for each query, [B or 1, N or 1, T, ...]."""

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        """Bias [B or 1, N or 1, rows, keys] of the queries from `start`, which are all it holds, and keys from `first`.

        `start` may be traced. `mask` gives the positions of queries among the keys.
        """

    def pairs(self, position: jax.Array, ahead: jax.Array) -> jax.Array:
        """Bias [B or 1, N or 1, ..., rows, keys] of keys `ahead` columns after their queries.

        `ahead` [1, 1, ..., rows, keys] may be traced; `position` [1, 1, ..., rows] are the columns of the queries,
        whose arrays here are [B or 1, N or 1, ..., rows, ...]. Keys outside of the sequence get finite numbers.
        """


@struct.dataclass
class Stored:
    """An array [B or 1, N or 1, T, S]."""

    array: jax.Array
    stored = True
    products = 0

    def map_queries(self, function: Callable) -> "Stored":
        return self.replace(array=function(self.array))

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        return self.array[..., first : first + keys]

    def pairs(self, position, ahead) -> jax.Array:
        # Pairs beyond the row's ends are hidden by the mask; they need only be finite.
        key = jnp.clip(position[..., None] + ahead, 0, self.array.shape[-1] - 1)
        return jnp.take_along_axis(self.array, jnp.broadcast_to(key, (*self.array.shape[:-1], key.shape[-1])), axis=-1)


@struct.dataclass
class ByMatch:
    """For each query and head, one number for keys of the query's segment and one for others (XLNet, section 2.5)."""

    same: jax.Array  # [B, N, T]
    other: jax.Array  # [B, N, T]
    # Ids are float32, because a bias is differentiated by all its leaves.
    query_ids: jax.Array  # [B, 1, T]
    key_ids: jax.Array  # [B, 1, S]
    stored = False
    products = 0

    def map_queries(self, function: Callable) -> "ByMatch":
        return self.replace(same=function(self.same), other=function(self.other), query_ids=function(self.query_ids))

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        return self._select(self.key_ids[:, :, None, first : first + keys])

    def pairs(self, position, ahead) -> jax.Array:
        key = jnp.clip(position[..., None] + ahead, 0, self.key_ids.shape[2] - 1)
        return self._select(jnp.take(self.key_ids, key[0, 0], axis=2))

    def _select(self, key_ids):
        """[B, N, ..., rows, keys] for keys with ids [B, 1, ..., rows or 1, keys]."""
        return jnp.where(self.query_ids[..., None] == key_ids, self.same[..., None], self.other[..., None])


@struct.dataclass
class ByBucket:
    """A learned number for each head and bucket of distances (T5: Raffel et al. 2019, section 2.1).

    Near distances have a bucket each, farther ones share buckets that widen with the logarithm of the distance.
    """

    table: jax.Array  # [1, N, buckets]
    both_ways: bool = struct.field(pytree_node=False)  # half of the buckets are for keys after the query
    max_distance: int = struct.field(pytree_node=False)  # from here on all distances share the last bucket
    stored = False
    products = 0

    def map_queries(self, function: Callable) -> "ByBucket":
        return self

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        if mask.offset is not None:  # each row of a cache ends at another position: look up every pair
            key = first + jnp.arange(keys, dtype=jnp.int32)[None, None, None, :]
            ahead = key - mask.positions(start + jnp.arange(rows, dtype=jnp.int32))[..., :, None]
            return jnp.moveaxis(self._values(ahead[:, 0])[0], 0, 1)
        # The bias is constant along diagonals: rows + keys - 1 look-ups, and each row of the tile is a shifted window.
        ahead = jnp.arange(rows + keys - 1, dtype=jnp.int32) + first - (mask.memory + start + rows - 1)
        # One more column on the left makes room for the shift.
        values = jnp.pad(self._values(ahead), ((0, 0), (0, 0), (1, 0)))[:, :, None]
        return shift_rows(jnp.broadcast_to(values, (*values.shape[:2], rows, values.shape[3])), keys)

    def pairs(self, position, ahead) -> jax.Array:
        # The same distances in every row, head and block: one look-up serves all.
        return self._values(ahead[0, 0])

    def _values(self, ahead):
        """Biases [1, N, ...] of keys `ahead` [...] positions after their queries."""
        return jnp.take(self.table, bucket(ahead, self.table.shape[2], self.max_distance, self.both_ways), axis=2)


@struct.dataclass
class Sum:
    """The sum of its parts."""

    parts: tuple

    @property
    def stored(self) -> bool:
        return any(part.stored for part in self.parts)

    @property
    def products(self) -> int:
        return sum(part.products for part in self.parts)

    def map_queries(self, function: Callable) -> "Sum":
        return Sum(tuple(part.map_queries(function) for part in self.parts))

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        return functools.reduce(operator.add, (part.tile(mask, start, rows, first, keys) for part in self.parts))

    def pairs(self, position, ahead) -> jax.Array:
        return functools.reduce(operator.add, (part.pairs(position, ahead) for part in self.parts))


def bucket(ahead: jax.Array, buckets: int, max_distance: int, both_ways: bool) -> jax.Array:
    """T5's bucket, int32, of a key `ahead` positions after its query (negative: before it)."""
    if both_ways:
        buckets //= 2
        # Keys after the query have the upper half of the buckets.
        base, distance = jnp.where(ahead > 0, buckets, 0), jnp.abs(ahead)
    else:  # keys ahead count as the query itself: causal attention does not see them
        base, distance = 0, jnp.maximum(-ahead, 0)
    edges = jnp.asarray(_bucket_edges(buckets, max_distance), jnp.int32)
    # The number of edges at or below a distance is its bucket.
    return (base + jnp.searchsorted(edges, distance, side="right")).astype(jnp.int32)


@functools.cache
def _bucket_edges(buckets: int, max_distance: int) -> np.ndarray:
    """The smallest distance of each bucket but the first."""
    # The first E = buckets / 2 have one distance each; bucket E + k begins at E (max / E)^(k / (buckets - E)). Compared
    # as integer powers, because float32 logarithms are a rounding off at distances 16, 32 and 64.
    exact = buckets // 2
    steps, edges, distance = buckets - exact, list(range(1, exact + 1)), exact
    for k in range(1, steps):
        while distance**steps * exact**k < max_distance**k * exact**steps:
            distance += 1
        edges.append(distance)
    return np.array(edges)


def shift_rows(padded: jax.Array, keys: int) -> jax.Array:
    """[..., T, 1 + R] -> [..., T, keys]: row i moves left by T - i (Dai et al. 2019, appendix B)."""
    # Row-major, entry (i, c) is number i (1 + R) + c. Read from number T on in rows of R, place (i, c) is number
    # T + i R + c = i (1 + R) + (c + T - i), which was entry (i, c + T - i). Two reshapes and a slice, no gather.
    *batch, T, R = padded.shape
    shifted = padded.reshape(*batch, T * R)[..., T:]
    return shifted.reshape(*batch, T, R - 1)[..., :keys]


def as_bias(bias) -> Bias | None:
    """A bias as `attend` takes it; an array becomes `Stored`."""
    return Stored(bias) if isinstance(bias, jax.Array | np.ndarray | jax.ShapeDtypeStruct) else bias


def bias_tile(bias: Bias | None, mask, start: int, rows: int, first: int, keys: int) -> jax.Array | None:
    """Bias [B or 1, N or 1, rows, keys] of the queries from `start` and the keys from `first`; None without one."""
    if bias is None:
        return None
    # Keys need no cut: `tile` computes only those it is asked for.
    return bias.map_queries(lambda x: x[:, :, start : start + rows]).tile(mask, start, rows, first, keys)


def full_bias(bias: Bias | None, mask, T: int, S: int) -> jax.Array | None:
    """The whole bias, for backends that do not work by tiles."""
    return bias_tile(bias, mask, 0, T, 0, S)


def pad_queries(bias: Bias | None, rows: int) -> Bias | None:
    """The bias with `rows` more queries, whose values are arbitrary."""
    if bias is None:
        return None
    return bias.map_queries(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, rows)) + ((0, 0),) * (x.ndim - 3)))


def add(scores: jax.Array, added: jax.Array) -> jax.Array:
    """The sum, with the scores' shape and dtype."""
    return _add(added.shape, scores, added.astype(scores.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add(shape, scores, added):
    return scores + added


_add.defvjp(
    lambda shape, scores, added: (scores + added, None), lambda shape, _, scores: (scores, sum_to(scores, shape))
)


def sum_to(scores: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sum of the scores' gradient over the axes along which a bias of `shape` was broadcast."""
    if shape[0] < scores.shape[0]:
        # On a CPU a product with a row of ones is several times faster than a sum over the batch, as long as barriers
        # keep XLA from merging it with its neighbours.
        ones, scores = jnp.ones(scores.shape[0], scores.dtype), jax.lax.optimization_barrier(scores)
        rows = jnp.dot(ones, scores.reshape(scores.shape[0], -1), precision=jax.lax.Precision.HIGHEST)
        scores = jax.lax.optimization_barrier(rows.reshape(1, *scores.shape[1:]))
    shared = tuple(axis for axis, size in enumerate(shape) if size < scores.shape[axis])
    return jnp.sum(scores, axis=shared, keepdims=True) if shared else scores


def split_queries(bias: Bias) -> tuple[Bias, list[jax.Array]]:
    """The bias without the arrays that have a row for each query, and those arrays."""
    by_query: list[jax.Array] = []
    return bias.map_queries(by_query.append), by_query


def join_queries(shared: Bias, by_query: list[jax.Array]) -> Bias:
    """The inverse of `split_queries`."""
    arrays = iter(by_query)
    return shared.map_queries(lambda _: next(arrays))
