"""Dense attention in O(T) memory: a block of queries at a time, computed again in the backward pass.

Unlike online softmax over blocks of keys (Rabe & Staats 2021), a block of queries takes its whole row of keys at once:
the scores in flight are rows * S instead of rows * columns, still linear in the length, and nothing needs rescaling.
Causal rows come in bands, each with the keys up to its own end, which leaves out most of the future's products.
"""

import functools
import itertools

import jax
import jax.numpy as jnp

from models.attention import flash
from models.attention.path import Path

ROWS = 128  # queries of a block
BANDS = 8  # of a causal square: 9/16 of its products


def attend(query, key, value, mask, bias, dropout, scale):
    """Attention of any mask: [B, T, N, H]. Peak temporary memory is about B * N * ROWS * S floats."""
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
    return mask, bias if bias is None else jnp.pad(bias, ((0, 0), (0, 0), (0, unused), (0, 0)))


def _bands(mask, T, S):
    """(first block, last block + 1, keys) of each band of query blocks."""
    blocks = T // ROWS
    if not (mask.causal and mask.offset is None and mask.prefix is None):
        return [(0, blocks, S)]
    edges = sorted({round(blocks * band / BANDS) for band in range(BANDS + 1)})
    return [(start, stop, min(S, mask.memory + stop * ROWS)) for start, stop in itertools.pairwise(edges)]


def _block(index, keys, mask, bias, dropout):
    """Visibility, dropout factors and bias of one block of queries against the first `keys` keys."""
    start = index * ROWS
    visible = mask.tile(start, ROWS, 0, keys)
    drop = None if dropout is None else dropout.tile(start, ROWS, 0, keys)
    return visible, drop, None if bias is None else _rows(bias, index)[..., :keys]


def _rows(x, index):
    return jax.lax.dynamic_slice_in_dim(x, index * ROWS, ROWS, axis=2)


def _stack(blocks):
    """[blocks, B, N, ROWS, ...] -> [B, N, blocks * ROWS, ...]."""
    x = jnp.moveaxis(blocks, 0, 2)
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


@jax.custom_vjp
def _attend(query, key, value, mask, bias, dropout):
    return _forward(query, key, value, mask, bias, dropout)[0]


def _forward(query, key, value, mask, bias, dropout):
    bands = []
    for start, stop, keys in _bands(mask, query.shape[2], key.shape[2]):

        def block(index, keys=keys):
            visible, drop, shift = _block(index, keys, mask, bias, dropout)
            part = flash.forward(_rows(query, index), key[:, :, :keys], value[:, :, :keys], visible, drop, shift)
            out, lse = flash.merge([part])
            return out.astype(query.dtype), lse

        bands.append([_stack(x) for x in jax.lax.map(block, jnp.arange(start, stop))])
    out, lse = (jnp.concatenate(parts, axis=2) for parts in zip(*bands, strict=True))
    return out, (query, key, value, mask, bias, dropout, out, lse)


def _backward(kept, gradient):
    query, key, value, mask, bias, dropout, out, lse = kept
    delta = flash.delta(gradient, out)
    d_key, d_value = (jnp.zeros(x.shape, jnp.float32) for x in (key, value))
    d_query, d_bias = [], []
    for start, stop, keys in _bands(mask, query.shape[2], key.shape[2]):

        def block(totals, index, keys=keys):
            visible, drop, shift = _block(index, keys, mask, bias, dropout)
            rows = (_rows(x, index) for x in (lse, gradient, delta))
            q, k, v = _rows(query, index), key[:, :, :keys], value[:, :, :keys]
            dq, dk, dv, scores = flash.backward(q, k, v, visible, *rows, drop, shift)
            shifted = None if bias is None else _shrink(scores, bias.shape, key.shape[2])
            return (totals[0] + dk, totals[1] + dv), (dq.astype(query.dtype), shifted)

        start_with = jnp.zeros_like(d_key[:, :, :keys]), jnp.zeros_like(d_value[:, :, :keys])
        (dk, dv), (dq, shifted) = jax.lax.scan(block, start_with, jnp.arange(start, stop))
        d_key, d_value = d_key.at[:, :, :keys].add(dk), d_value.at[:, :, :keys].add(dv)
        d_query.append(_stack(dq))
        d_bias.append(shifted)
    d_query = jnp.concatenate(d_query, axis=2)
    d_bias = None if bias is None else jnp.concatenate(list(map(_stack, d_bias)), axis=2).astype(bias.dtype)
    return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype), None, d_bias, None


def _shrink(scores, shape, S):
    """Gradient by a bias [1 or B, 1 or N, T, S] from that by the scores of its first keys."""
    summed = tuple(axis for axis in (0, 1) if shape[axis] == 1)
    scores = jnp.sum(scores, axis=summed, keepdims=True) if summed else scores
    return jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, S - scores.shape[3])))


_attend.defvjp(_forward, _backward)

PATH = Path("chunked", attend, lambda request: None)
