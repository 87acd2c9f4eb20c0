"""Sparse patterns in O(T sqrt T) time and memory: rearrange, multiply small dense matrices, merge (Child et al. 2019).

Each pattern is covered by one or two parts; a part is a rearrangement of queries and keys after which the keys of a
query lie together, so that a batch of small dense attentions does the work on any platform:

    local_W      blocks of W queries, or half as many, against their own block and those within W: before, and after
                 it where attention is not causal
    block_L      blocks of L queries against their own block
    column_L     the sequence as a matrix of width L, transposed: T/L queries against the T/L keys of their column
    summary_L_C  all queries against the gathered summary keys; causal ones in bands that leave out their future's

Of the keys that a rearrangement brings to it, a query sees those in a run of positions. Where two patterns are merged,
the far one's runs end where the near one's begins, and the two outputs are merged by their log-sum-exp.

A bias is made of the pairs that a rearrangement brings together. How far a key is ahead of its query is the same in
every block and column, so that a bias by distance is made for one of them.
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from models.attention import flash
from models.attention.backend import Path, Request, refuse_features
from models.attention.biases import lengthen, summed
from models.attention.dropout import Dropout
from models.attention.patterns import Block, Column, Dense, Local, Pattern, Summary, Union
from models.attention.rows import Rows

HALVED_FROM = 128  # windows; smaller blocks than 64 make products too small for a CPU's cores


@dataclass(frozen=True)
class Rearranged:
    """A part that brings a query's keys together: views of [B, N, T, ...] as batches, [B, N, batch, rows, ...].

    `back` undoes the view `queries`. A place that no key fills holds 0. `intervals` gives the first and the last key of
    each run of positions that a query at a position sees, of those that the view brings to it. `step` and `before` say
    how far a key is ahead of its query: of row r and key k of a batch, step * (k - before - r).
    """

    queries: Callable
    keys: Callable
    back: Callable
    intervals: Callable
    step: int = 1
    before: int = 0

    def forward(self, query, key, value, bias, context):
        """Output [B, N, T, H] and lse [B, N, T, 1]."""
        inputs = self.queries(query), self.keys(key), self.keys(value)
        return tuple(map(self.back, flash.forward(*inputs, *self._conditions(context), self._added(bias, context))))

    def backward(self, query, key, value, lse, gradient, delta, bias, context):
        """Gradients by query, key, value and bias."""
        views = self.queries, self.keys, self.keys
        inputs = (view(x) for view, x in zip(views, (query, key, value), strict=True))
        rows = (self.queries(x) for x in (lse, gradient, delta))
        visible, drop = self._conditions(context)
        added, pull = jax.vjp(lambda bias: self._added(bias, context), bias)
        *gradients, scores = flash.backward(*inputs, visible, *rows, drop, added)
        shapes = query.shape, key.shape, value.shape
        gradients = [_undo(*one) for one in zip(views, shapes, gradients, strict=True)]
        return [*gradients, None if bias is None else pull(summed(scores, added.shape).astype(added.dtype))[0]]

    def _conditions(self, context):
        return context.conditions(self.intervals, self.queries, self.keys)

    def _added(self, bias, context):
        """What a bias adds to the scores of all batches."""
        if bias is None:
            return None
        position = self.queries(context.positions)
        rows, keys = position.shape[-1], self.keys(context.positions).shape[-1]
        ahead = self.step * (np.arange(keys, dtype=np.int32) - self.before - np.arange(rows, dtype=np.int32)[:, None])
        return bias.map_queries(self.queries).pairs(position, jnp.asarray(ahead)[None, None, None])


@dataclass(frozen=True)
class Gathered:
    """A part of all queries against a few gathered keys, a block of queries at a time."""

    pattern: Summary
    intervals: Callable
    causal: bool

    def keys(self, x):
        """The summary keys of every block: [B, N, T, ...] -> [B, N, T/stride * width, ...]."""
        first = self.pattern.stride - self.pattern.skip - self.pattern.width
        return _join(_split(x, self.pattern.stride)[:, :, :, first : first + self.pattern.width])

    def forward(self, query, key, value, bias, context):
        return self._rows(context).forward(query, self.keys(key), self.keys(value), bias)

    def backward(self, query, key, value, lse, gradient, delta, bias, context):
        inputs = query, self.keys(key), self.keys(value)
        d_query, *d_keys, d_bias = self._rows(context).backward(*inputs, lse, gradient, delta, bias)
        shapes = key.shape, value.shape
        return [d_query, *(_undo(self.keys, *one) for one in zip(shapes, d_keys, strict=True)), d_bias]

    def _rows(self, context):
        def block(start, rows, count):
            def queries(x):
                return jax.lax.dynamic_slice_in_dim(x, start, rows, axis=2)

            return context.conditions(self.intervals, queries, lambda x: self.keys(x)[:, :, :count])

        def added(bias, start, rows, count):
            position = start + jnp.arange(rows, dtype=jnp.int32)[None, None]
            key = self.keys(context.positions)[:, :, :count]
            return bias.pairs(position, key[..., None, :] - position[..., :, None])

        def limit(stop):
            return stop // self.pattern.stride * self.pattern.width

        return Rows(self.pattern.stride, limit if self.causal else None, block, added)


@struct.dataclass
class Context:
    """What decides, besides the pattern, whether a query sees a key: arrays [B or 1, 1, T]; and dropout."""

    positions: jax.Array
    query_marks: jax.Array | None  # segments and validity as one number: a key is seen if its mark is the query's
    key_marks: jax.Array | None
    dropout: Dropout | None

    @classmethod
    def of(cls, mask, dropout, T, padded):
        """The context of a mask over T positions, lengthened to whole blocks."""
        positions = jnp.arange(padded, dtype=jnp.int32)[None, None]
        if not mask.features() & {"segments", "key_valid"}:
            return cls(positions, None, None, dropout)
        query = jnp.ones((1, T), jnp.int32) if mask.query_segments is None else mask.query_segments
        key = query if mask.key_segments is None else mask.key_segments
        if mask.key_valid is not None:
            key = jnp.where(mask.key_valid, key, 0)
        marks = (jnp.pad(x, ((0, 0), (0, padded - T)))[:, None] for x in (jnp.where(query == 0, -1, query), key))
        return cls(positions, *marks, dropout)

    def conditions(self, intervals, queries, keys):
        """Visibility and dropout factors, or None, of the pairs that two views bring together."""
        i = queries(self.positions)[..., :, None]
        j = keys(self.positions + 1)[..., None, :] - 1  # -1 where no key fills a place, before every interval
        visible = functools.reduce(operator.or_, ((first <= j) & (j <= last) for first, last in intervals(i)))
        if self.query_marks is not None:
            visible &= queries(self.query_marks)[..., :, None] == keys(self.key_marks)[..., None, :]
        return visible, None if self.dropout is None else self.dropout.scales(i, j)


def _split(x, size):
    """[B, N, T, ...] -> [B, N, T/size, size, ...]."""
    return x.reshape(*x.shape[:2], -1, size, *x.shape[3:])


def _join(x):
    """[B, N, batch, rows, ...] -> [B, N, batch * rows, ...]."""
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


def _with_neighbours(blocks, before, after):
    """Each block between those next to it: [B, N, batch, size, ...] -> [B, N, batch, (before + 1 + after) size, ...]"""
    batch = blocks.shape[2]
    padded = jnp.pad(blocks, [(0, 0), (0, 0), (before, after)] + [(0, 0)] * (blocks.ndim - 3))
    return jnp.concatenate([padded[:, :, i : i + batch] for i in range(before + 1 + after)], axis=3)


def _undo(view, shape, gradient):
    """The gradient of `view`'s argument, of `shape`, given that of its result: every entry goes back where it was."""
    return jax.linear_transpose(view, jax.ShapeDtypeStruct(shape, gradient.dtype))(gradient)[0]


def _local(window, causal, intervals):
    # Two blocks before a block of half a window are 3/4 of the keys of one before a block of a whole one.
    blocks = 2 if window >= HALVED_FROM and window % 2 == 0 else 1

    def queries(x):
        return _split(x, window // blocks)

    def keys(x):
        return _with_neighbours(queries(x), blocks, 0 if causal else blocks)

    return Rearranged(queries, keys, _join, intervals, before=window)


def _block(size, intervals):
    split = functools.partial(_split, size=size)
    return Rearranged(split, split, _join, intervals)


def _column(stride, intervals):
    def transpose(x):
        return jnp.swapaxes(_split(x, stride), 2, 3)

    return Rearranged(transpose, transpose, lambda x: _join(jnp.swapaxes(x, 2, 3)), intervals, step=stride)


@dataclass(frozen=True)
class Kind:
    """What the parts are made of: a pattern, over positions 0 .. T - 1, of which a causal query sees those up to it."""

    pattern: Pattern
    T: int
    causal: bool

    def parts(self):
        """Parts whose keys are disjoint and together are the pattern's."""
        match self.pattern:
            case Local(window):
                return (_local(window, self.causal, self._near(window)),)
            case Block(size):
                return (_block(size, self._all),)
            case Column(stride):
                return (_column(stride, self._all),)
            case Summary() as pattern:
                return (Gathered(pattern, self._all, self.causal),)
            case Union(Local(window), Column(stride)):
                beyond = self._outside(lambda i: (i - window + 1, i + window - 1))
                return _local(window, self.causal, self._near(window)), _column(stride, beyond)
            case Union(Block(size), Summary() as far):
                beyond = self._outside(lambda i: (i // size * size, i // size * size + size - 1))
                return _block(size, self._all), Gathered(far, beyond, self.causal)

    # Positions that a query at i sees, as runs (first, last).

    def _all(self, i):
        return ((0, i if self.causal else self.T - 1),)

    def _near(self, window):
        def intervals(i):
            last = i if self.causal else jnp.minimum(i + window - 1, self.T - 1)
            return ((jnp.maximum(i - window + 1, 0), last),)

        return intervals

    def _outside(self, hole):
        def intervals(i):
            first, last = hole(i)
            return ((0, first - 1),) if self.causal else ((0, first - 1), (last + 1, self.T - 1))

        return intervals


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
    """Attention by one sparse pattern: [B, T, N, H]. Rows are padded to whole blocks; the padding is unseen."""
    T = query.shape[1]
    padded = T + -T % _unit(mask.pattern)
    arrays = (
        jnp.pad(x, ((0, 0), (0, 0), (0, padded - T), (0, 0))) for x in flash.heads_first(query, key, value, scale)
    )
    context = Context.of(mask, dropout, T, padded)
    out = _attend(Kind(mask.pattern, T, mask.causal), *arrays, lengthen(bias, padded - T), context)
    return jnp.swapaxes(out[:, :, :T], 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(kind, query, key, value, bias, context):
    return _forward(kind, query, key, value, bias, context)[0]


def _forward(kind, query, key, value, bias, context):
    out, lse = flash.merge([part.forward(query, key, value, bias, context) for part in kind.parts()])
    out = out.astype(query.dtype)
    return out, (query, key, value, bias, context, out, lse)


def _backward(kind, kept, gradient):
    query, key, value, bias, context, out, lse = kept
    rows = lse, gradient, flash.delta(gradient, out)
    parts = [part.backward(query, key, value, *rows, bias, context) for part in kind.parts()]
    *gradients, d_bias = (jax.tree.map(lambda *terms: sum(terms), *part) for part in zip(*parts, strict=True))
    return *(x.astype(query.dtype) for x in gradients), d_bias, None


_attend.defvjp(_forward, _backward)


def _refuses(request: Request) -> str | None:
    if isinstance(request.pattern, Dense):
        return "the pattern is dense"
    missing = refuse_features(request, {"causal", "segments", "key_segments", "key_valid"})
    if missing is None and request.T != request.S:
        return f"its queries are its keys' own positions, which {request.T} queries and {request.S} keys are not"
    return missing


PATH = Path("sparse", attend, _refuses)
