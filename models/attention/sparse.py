"""Sparse patterns in O(T sqrt T) time and memory: rearrange, multiply small dense matrices, merge (Child et al. 2019).

Each pattern is covered by one or two layers of pieces; a layer is a rearrangement of queries and keys after which the
keys of a query lie together, so that a batch of small dense attentions does the work on any platform:

    local_W      blocks of W queries against their own block and the one before
    block_L      blocks of L queries against their own block
    column_L     the sequence as a matrix of width L, transposed: T/L queries against the T/L keys of their column
    summary_L_C  all queries against the gathered summary keys, in bands that leave out the keys of their future

What a rearrangement brings together in excess of the pattern, the pattern's own `sees` hides. Where two patterns are
merged, the far one leaves out what the near one sees, and the two outputs are merged by their log-sum-exp.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from models.attention import flash
from models.attention.path import Path, Request, refuse_features
from models.patterns import Block, Column, Dense, Local, Summary, Union

BANDS = 8  # of the summary layer: 9/16 of the work of one band, and an eighth of the memory


@dataclass(frozen=True)
class Piece:
    """One rearrangement: maps [B, N, T, ...] to batches of rows, [B, N, batch, rows, ...], for queries and for keys.

    `back` undoes `queries`. A place that no key fills holds 0. `sees` is the pattern in terms of positions.
    """

    queries: Callable
    keys: Callable
    back: Callable
    sees: Callable


def _split(x, size):
    """[B, N, T, ...] -> [B, N, T/size, size, ...]."""
    return x.reshape(*x.shape[:2], -1, size, *x.shape[3:])


def _join(x):
    """[B, N, batch, rows, ...] -> [B, N, batch * rows, ...]."""
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


def _with_previous(blocks):
    """Each block behind the one before it: [B, N, batch, size, ...] -> [B, N, batch, 2 size, ...]."""
    before = jnp.pad(blocks[:, :, :-1], [(0, 0), (0, 0), (1, 0)] + [(0, 0)] * (blocks.ndim - 3))
    return jnp.concatenate([before, blocks], axis=3)


def _blocks(size, sees, previous):
    split = functools.partial(_split, size=size)
    return [Piece(split, lambda x: _with_previous(split(x)) if previous else split(x), _join, sees)]


def _columns(stride, sees):
    def transpose(x):
        return jnp.swapaxes(_split(x, stride), 2, 3)

    return [Piece(transpose, transpose, lambda x: _join(jnp.swapaxes(x, 2, 3)), sees)]


def _summaries(pattern, sees, T):
    first = pattern.stride - pattern.skip - pattern.width
    blocks = T // pattern.stride
    edges = sorted({round(blocks * band / BANDS) for band in range(BANDS + 1)})

    def band(start, stop):
        def queries(x):
            return x[:, :, start * pattern.stride : stop * pattern.stride][:, :, None]

        def keys(x):
            seen = _split(x, pattern.stride)[:, :, :stop, first : first + pattern.width]
            return _join(seen)[:, :, None]

        return Piece(queries, keys, _join, sees)

    return [band(start, stop) for start, stop in itertools.pairwise(edges)]


def _layer(pattern, T, without=None):
    """The pieces of one pattern, in the order of their queries, leaving out what pattern `without` sees."""

    def sees(i, j):
        seen = pattern.sees(i, j) & (j <= i)
        return seen if without is None else seen & ~without.sees(i, j)

    match pattern:
        case Local(window):
            return _blocks(window, sees, previous=True)
        case Block(size):
            return _blocks(size, sees, previous=False)
        case Column(stride):
            return _columns(stride, sees)
        case Summary():
            return _summaries(pattern, sees, T)


def _layers(pattern, T):
    if isinstance(pattern, Union):
        return [_layer(pattern.near, T), _layer(pattern.far, T, without=pattern.near)]
    return [_layer(pattern, T)]


def _unit(pattern) -> int:
    """Rows come in multiples of this."""
    match pattern:
        case Union(near, far):
            return max(_unit(near), _unit(far))
        case Local(size) | Block(size) | Column(size):
            return size
        case Summary():
            return pattern.stride


def attend(query, key, value, mask, bias, dropout, scale):
    """Attention by one sparse pattern, causal: [B, T, N, H]. Rows are padded to whole blocks; the padding is unseen."""
    T = query.shape[1]
    unseen = -T % _unit(mask.pattern)
    query_marks, key_marks = _marks(mask, T)
    arrays = flash.heads_first(query, key, value, scale)
    query, key, value, query_marks, key_marks = (
        jnp.pad(x, [(0, 0), (0, 0), (0, unseen)] + [(0, 0)] * (x.ndim - 3)) if unseen else x
        for x in (*arrays, query_marks, key_marks)
    )
    out = _attend(mask.pattern, query, key, value, query_marks, key_marks, dropout)
    return jnp.swapaxes(out[:, :, :T], 1, 2)


def _marks(mask, T):
    """Segments and validity as one pair of int arrays [B or 1, 1, T]: a key is seen if its mark is the query's."""
    ones = jnp.ones((1, T), jnp.int32)
    query = ones if mask.query_segments is None else mask.query_segments
    key = query if mask.key_segments is None else mask.key_segments
    if mask.key_valid is not None:
        key = jnp.where(mask.key_valid, key, 0)
    return jnp.where(query == 0, -1, query)[:, None], key[:, None]


def _prepare(piece, T, query_marks, key_marks, dropout):
    """Visibility [B or 1, 1, batch, rows, keys] of a piece, and its dropout factors or None."""
    position = jnp.arange(1, T + 1, dtype=jnp.int32)[None, None]  # from 1: a place that no key fills becomes key -1
    i = (piece.queries(position) - 1)[..., :, None]
    j = (piece.keys(position) - 1)[..., None, :]
    visible = (
        piece.sees(i, j) & (j >= 0) & (piece.queries(query_marks)[..., :, None] == piece.keys(key_marks)[..., None, :])
    )
    return visible, None if dropout is None else dropout.scales(i, j)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(pattern, query, key, value, query_marks, key_marks, dropout):
    return _forward(pattern, query, key, value, query_marks, key_marks, dropout)[0]


def _forward(pattern, query, key, value, query_marks, key_marks, dropout):
    T = query.shape[2]
    merged = []
    for layer in _layers(pattern, T):
        parts = []
        for piece in layer:
            visible, drop = _prepare(piece, T, query_marks, key_marks, dropout)
            part = flash.forward(piece.queries(query), piece.keys(key), piece.keys(value), visible, drop)
            parts.append(tuple(map(piece.back, part)))
        merged.append(tuple(jnp.concatenate(columns, axis=2) for columns in zip(*parts, strict=True)))
    out, lse = flash.merge(merged)
    out = out.astype(query.dtype)
    return out, (query, key, value, query_marks, key_marks, dropout, out, lse)


def _backward(pattern, kept, gradient):
    query, key, value, query_marks, key_marks, dropout, out, lse = kept
    T = query.shape[2]
    delta = flash.delta(gradient, out)
    totals = None
    for piece in (piece for layer in _layers(pattern, T) for piece in layer):
        visible, drop = _prepare(piece, T, query_marks, key_marks, dropout)
        views = piece.queries, piece.keys, piece.keys
        rows = (piece.queries(x) for x in (lse, gradient, delta))
        inputs = (view(x) for view, x in zip(views, (query, key, value), strict=True))
        *gradients, _ = flash.backward(*inputs, visible, *rows, drop)
        spread = [_undo(view, query.shape, x) for view, x in zip(views, gradients, strict=True)]
        totals = spread if totals is None else [total + x for total, x in zip(totals, spread, strict=True)]
    return (*(total.astype(query.dtype) for total in totals), None, None, None)


def _undo(view, shape, gradient):
    """The gradient of `view`'s argument, of `shape`, given that of its result: every entry goes back where it was."""
    return jax.linear_transpose(view, jax.ShapeDtypeStruct(shape, gradient.dtype))(gradient)[0]


_attend.defvjp(_forward, _backward)


def _refuses(request: Request) -> str | None:
    if isinstance(request.pattern, Dense):
        return "the pattern is dense"
    if "causal" not in request.features:
        return "the attention is not causal"
    if request.bias:
        return "a bias has an entry for every pair, which is what a sparse pattern does without"
    return refuse_features(request, {"causal", "segments", "key_valid"})


PATH = Path("sparse", attend, _refuses)
