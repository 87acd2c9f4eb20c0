"""Dense attention of any mask in O(T) memory: blocks of queries in turn, computed again in the backward pass."""

import functools

import jax
import jax.numpy as jnp

from models.attention import flash
from models.attention.backend import Path
from models.attention.biases import lengthen
from models.attention.rows import Rows

ROWS = 128  # queries of a block


def attend(query, key, value, mask, bias, dropout, scale):
    """Attention of any mask: [B, T, N, H]. Peak temporary memory is a few times B * N * ROWS * S floats."""
    T = query.shape[1]
    unused = -T % ROWS
    query, key, value = flash.heads_first(query, key, value, scale)
    if unused:  # whole blocks only; the added queries are cut off again
        query = jnp.pad(query, ((0, 0), (0, 0), (0, unused), (0, 0)))
        mask, bias = _pad_rows(mask, bias, unused)
    return jnp.swapaxes(_attend(query, key, value, mask, bias, dropout)[:, :, :T], 1, 2)


def _pad_rows(mask, bias, unused):
    pad = functools.partial(jnp.pad, pad_width=((0, 0), (0, unused)))
    if mask.query_segments is not None:
        key_segments = mask.query_segments if mask.key_segments is None else mask.key_segments
        mask = mask.replace(query_segments=pad(mask.query_segments), key_segments=key_segments)
    if mask.query_ranks is not None:
        mask = mask.replace(query_ranks=pad(mask.query_ranks))
    if mask.places is not None:
        mask = mask.replace(places=pad(mask.places))
    return mask, lengthen(bias, unused)


def _rows(mask, dropout):
    def block(start, rows, keys):
        drop = None if dropout is None else dropout.tile(start, rows, 0, keys)
        return mask.tile(start, rows, 0, keys), drop

    def added(bias, start, rows, keys):
        return bias.tile(mask, start, rows, 0, keys)

    known_future = mask.causal and mask.offset is None and mask.prefix is None
    return Rows(ROWS, (lambda stop: mask.memory + stop) if known_future else None, block, added)


@jax.custom_vjp
def _attend(query, key, value, mask, bias, dropout):
    return _forward(query, key, value, mask, bias, dropout)[0]


def _forward(query, key, value, mask, bias, dropout):
    out, lse = flash.merge([_rows(mask, dropout).forward(query, key, value, bias)])
    out = out.astype(query.dtype)
    return out, (query, key, value, mask, bias, dropout, out, lse)


def _backward(kept, gradient):
    query, key, value, mask, bias, dropout, out, lse = kept
    delta = flash.delta(gradient, out)
    *gradients, d_bias = _rows(mask, dropout).backward(query, key, value, lse, gradient, delta, bias)
    return *(x.astype(query.dtype) for x in gradients), None, d_bias, None


_attend.defvjp(_forward, _backward)

PATH = Path("chunked", attend, lambda request: None)
