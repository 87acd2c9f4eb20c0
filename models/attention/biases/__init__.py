"""What is added to the scores: described wherever it can be, so that a path makes of it the piece it works on.

    Stored       an array, with an entry for every pair
    ByDistance   a product of queries with a key for each distance (Transformer-XL)
    ByBucket     a learned number for each head and bucket of distances (T5)
    Sum          several of them

A bias is a pytree whose arrays have the batch and the heads, or 1, as their first two axes. Those that have a row for
each query have it as their third: `map_queries` reaches them, which is all that a path must know to cut a bias into
blocks of queries, to lengthen it, and to put the gradients of the blocks together.
"""

from collections.abc import Callable
from typing import Protocol

import jax

from models.attention.biases.bucket import ByBucket
from models.attention.biases.distance import ByDistance
from models.attention.biases.stored import Stored
from models.attention.biases.sum import Sum

__all__ = [
    "Bias",
    "ByBucket",
    "ByDistance",
    "Stored",
    "Sum",
    "described",
    "join_queries",
    "split_queries",
    "tile",
    "whole",
]


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


def described(bias) -> Bias | None:
    """A bias as given to `attend`: an array is `Stored`."""
    return bias if bias is None or hasattr(bias, "tile") else Stored(bias)


def tile(bias: Bias | None, mask, start: int, rows: int, first: int, keys: int) -> jax.Array | None:
    """Bias [B or 1, N or 1, rows, keys] of the queries from `start` and the keys from `first` on; None without one."""
    if bias is None:
        return None
    return bias.map_queries(lambda x: x[:, :, start : start + rows]).tile(mask, start, rows, first, keys)


def whole(bias: Bias | None, mask, T: int, S: int) -> jax.Array | None:
    """All of it, for paths that do not work piece by piece."""
    return tile(bias, mask, 0, T, 0, S)


def split_queries(bias: Bias) -> tuple[Bias, list[jax.Array]]:
    """The bias without the arrays that have a row for each query, and those arrays."""
    by_query: list[jax.Array] = []
    return bias.map_queries(by_query.append), by_query


def join_queries(shared: Bias, by_query: list[jax.Array]) -> Bias:
    """What `split_queries` took apart."""
    arrays = iter(by_query)
    return shared.map_queries(lambda _: next(arrays))
