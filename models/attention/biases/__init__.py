"""What is added to the scores: described wherever it can be, so that a path makes of it the piece it works on.

    Stored       an array, with an entry for every pair
    ByDistance   a product of queries with a key for each distance (Transformer-XL)
    ByMatch      two numbers for each query, of which one is for keys of its own kind (XLNet)
    ByBucket     a learned number for each head and bucket of distances (T5)
    Sum          several of them

A bias is a pytree whose arrays have the batch and the heads, or 1, as their first two axes. Those that have a row for
each query have it as their third: `map_queries` reaches them, which is all that a path must know to cut a bias into
blocks of queries, to rearrange it, to lengthen it, and to put the gradients of the blocks together.
"""

import functools
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from models.attention.biases.bucket import ByBucket
from models.attention.biases.distance import ByDistance
from models.attention.biases.match import ByMatch
from models.attention.biases.stored import Stored
from models.attention.biases.sum import Sum

__all__ = [
    "Bias",
    "ByBucket",
    "ByDistance",
    "ByMatch",
    "Stored",
    "Sum",
    "add",
    "described",
    "join_queries",
    "lengthen",
    "split_queries",
    "summed",
    "tile",
    "whole",
]

KINDS = (ByBucket, ByDistance, ByMatch, Stored, Sum)


class Bias(Protocol):
    """What every bias offers."""

    stored: bool  # whether it holds an entry for every pair, so that making less of it saves nothing
    products: int  # multiply-adds that the bias of one score takes

    def check(self, batch: int, heads: int, T: int, S: int):
        """Raise ModelError where it does not fit attention of these sizes."""

    def map_queries(self, function: Callable) -> "Bias":
        """The same with `function` of each array that has a row for each query, [B or 1, N or 1, T, ...]."""

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        """Bias [B or 1, N or 1, rows, keys] from the keys `first` on, of one that holds the queries from `start` alone.

        `start` may be traced. Where queries stand among the keys, `mask` says.
        """

    def pairs(self, position: jax.Array, ahead: jax.Array) -> jax.Array:
        """Bias [B or 1, N or 1, ..., rows, keys] of keys that stand `ahead` columns after their queries.

        `ahead` [1, 1, ..., rows, keys] may be traced; queries [1, 1, ..., rows] stand at the columns `position`, as do
        those that it holds, whose arrays are [B or 1, N or 1, ..., rows, ...]. Further axes that are 1 serve all. What
        it says of columns before the first key or after the last is finite, and means nothing.
        """


def described(bias) -> Bias | None:
    """A bias as given to `attend`: an array is `Stored`."""
    return bias if bias is None or isinstance(bias, KINDS) else Stored(bias)


def tile(bias: Bias | None, mask, start: int, rows: int, first: int, keys: int) -> jax.Array | None:
    """Bias [B or 1, N or 1, rows, keys] of the queries from `start` and the keys from `first` on; None without one."""
    if bias is None:
        return None
    return bias.map_queries(lambda x: x[:, :, start : start + rows]).tile(mask, start, rows, first, keys)


def whole(bias: Bias | None, mask, T: int, S: int) -> jax.Array | None:
    """All of it, for paths that do not work piece by piece."""
    return tile(bias, mask, 0, T, 0, S)


def lengthen(bias: Bias | None, rows: int) -> Bias | None:
    """The same with so many more queries, which mean nothing."""
    if bias is None:
        return None
    return bias.map_queries(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, rows)) + ((0, 0),) * (x.ndim - 3)))


def add(scores: jax.Array, added: jax.Array) -> jax.Array:
    """The sum, of the scores' shape and type."""
    return _add(added.shape, scores, added.astype(scores.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add(shape, scores, added):
    return scores + added


_add.defvjp(
    lambda shape, scores, added: (scores + added, None), lambda shape, _, scores: (scores, summed(scores, shape))
)


def summed(scores: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Gradient by what was added, of `shape`, and broadcast to the scores, from that by the scores."""
    if shape[0] < scores.shape[0]:
        # On a CPU a product over rows of the batch is several times faster than their sum, if XLA lets it be.
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
    """What `split_queries` took apart."""
    arrays = iter(by_query)
    return shared.map_queries(lambda _: next(arrays))
