"""Tokens in chunks, so that what a token makes for every id of a vocabulary is never held for all tokens at once."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax
import jax.numpy as jnp

_undivided: ContextVar[bool] = ContextVar("undivided", default=False)


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """In it a row is one chunk, so that a program that is traced to be counted multiplies no zeros."""
    token = _undivided.set(True)
    try:
        yield
    finally:
        _undivided.reset(token)


def in_chunks(tokens, rows: int):
    """Each array [B, T, ...] of a tree as [T / c, B, c, ...], with B * c at most `rows` where B allows it.

    Chunks run along T so that the rows of a batch, which devices share, stay where they are. Where T has no divisor c
    near that many, such as a prime T, zeros follow its end: `whole` takes them off again.
    """
    length = jax.tree.leaves(tokens)[0].shape[1]

    def one(array):
        batch = array.shape[0]
        size = length if _undivided.get() else _size(length, max(1, rows // batch))
        array = jnp.pad(array, [(0, 0), (0, -length % size)] + [(0, 0)] * (array.ndim - 2))
        return jnp.moveaxis(array.reshape(batch, -1, size, *array.shape[2:]), 1, 0)

    return jax.tree.map(one, tokens)


def whole(parts, length: int):
    """The inverse of `in_chunks`, of arrays whose T was `length`."""

    def one(part):
        turned = jnp.moveaxis(part, 0, 1)
        return turned.reshape(turned.shape[0], -1, *turned.shape[3:])[:, :length]

    return jax.tree.map(one, parts)


def _size(length: int, most: int) -> int:
    """The largest divisor of `length` up to `most`; where that is less than half of it, so that chunks are alike."""
    most = min(length, most)
    size = next(size for size in range(most, 0, -1) if length % size == 0)
    return size if 2 * size >= most else -(-length // -(-length // most))
