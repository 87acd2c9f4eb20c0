"""Sparse patterns in O(T sqrt T) time and memory: rearrange, multiply small dense matrices, merge (Child et al. 2019).

Each pattern is covered by one or two parts. A part rearranges queries and keys so that the keys of a query are
contiguous, and a batch of small dense attentions does the work on any platform:

    local_W      blocks of W queries, or half as many, against their own block and those within W: before it, and after
                 it if attention is not causal
    block_L      blocks of L queries against their own block
    column_L     the sequence as a matrix of width L, transposed: T/L queries against the T/L keys of their column
    summary_L_C  all queries against the gathered summary keys; causal ones in bands that skip their future's

Among the keys that a rearrangement brings to it, a query sees those in one or two runs of positions. In a union, the
far pattern's runs end where the near one's begins, so keys are disjoint and the outputs merge by their log-sum-exp.

Biases are computed for the pairs that a rearrangement brings together. The distance from query to key is the same in
every block and column, so a bias by distance is computed for one of them.
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
from models.attention.backend import Backend, Request, missing_features
from models.attention.biases import pad_queries, sum_to
from models.attention.chunked import QueryBlocks
from models.attention.patterns import Block, Column, Dense, Local, Pattern, Summary, Union
from models.layers.dropout import AttentionDropout

HALVE_FROM = 128  # window; blocks smaller than 64 make products too small for a CPU core


@dataclass(frozen=True)
class Rearranged:
    """A part that makes a query's keys contiguous.

    queries, keys: views of [B, N, T, ...] as small batches [B, N, batch, rows, ...]; slots without a key hold 0.
    restore: the inverse of `queries`.
    intervals: position -> (first, last) of each run of positions that its query sees among the keys in its batch.
    step, before: in each batch, key k is step * (k - before - r) positions ahead of the query in row r.
    """

    queries: Callable
    keys: Callable
    restore: Callable
    intervals: Callable
    step: int = 1
    before: int = 0

    def forward(self, query, key, value, bias, visibility):
        """Output [B, N, T, H] and lse [B, N, T, 1]."""
        inputs = self.queries(query), self.keys(key), self.keys(value)
        return tuple(map(self.restore, flash.forward(*inputs, *self._pairs(visibility), self._added(bias, visibility))))

    def backward(self, query, key, value, lse, gradient, delta, bias, visibility):
        """Gradients by query, key, value and bias."""
        views = self.queries, self.keys, self.keys
        inputs = (view(x) for view, x in zip(views, (query, key, value), strict=True))
        rows = (self.queries(x) for x in (lse, gradient, delta))
        visible, drop = self._pairs(visibility)
        added, pull = jax.vjp(lambda bias: self._added(bias, visibility), bias)
        *gradients, scores = flash.backward(*inputs, visible, *rows, drop, added)
        shapes = query.shape, key.shape, value.shape
        gradients = [_transpose(*one) for one in zip(views, shapes, gradients, strict=True)]
        return [*gradients, None if bias is None else pull(sum_to(scores, added.shape).astype(added.dtype))[0]]

    def _pairs(self, visibility):
        return visibility.pairs(self.intervals, self.queries, self.keys)

    def _added(self, bias, visibility):
        """The scores that a bias adds in all batches."""
        if bias is None:
            return None
        position = self.queries(visibility.positions)
        rows, keys = position.shape[-1], self.keys(visibility.positions).shape[-1]
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

    def forward(self, query, key, value, bias, visibility):
        return self._query_blocks(visibility).forward(query, self.keys(key), self.keys(value), bias)

    def backward(self, query, key, value, lse, gradient, delta, bias, visibility):
        inputs = query, self.keys(key), self.keys(value)
        d_query, *d_keys, d_bias = self._query_blocks(visibility).backward(*inputs, lse, gradient, delta, bias)
        shapes = key.shape, value.shape
        return [d_query, *(_transpose(self.keys, *one) for one in zip(shapes, d_keys, strict=True)), d_bias]

    def _query_blocks(self, visibility):
        def block(start, rows, count):
            def queries(x):
                return jax.lax.dynamic_slice_in_dim(x, start, rows, axis=2)

            return visibility.pairs(self.intervals, queries, lambda x: self.keys(x)[:, :, :count])

        def added(bias, start, rows, count):
            position = start + jnp.arange(rows, dtype=jnp.int32)[None, None]
            key = self.keys(visibility.positions)[:, :, :count]
            return bias.pairs(position, key[..., None, :] - position[..., :, None])

        def limit(stop):
            return stop // self.pattern.stride * self.pattern.width

        return QueryBlocks(self.pattern.stride, limit if self.causal else None, block, added)


@struct.dataclass
class Visibility:
    """Conditions besides the pattern, as arrays [B or 1, 1, T], and dropout."""

    positions: jax.Array
    query_ids: jax.Array | None  # segments and validity as one number: a query sees keys with its own id
    key_ids: jax.Array | None
    dropout: AttentionDropout | None

    @classmethod
    def create(cls, mask, dropout, T, padded):
        """The visibility of a mask over T positions, padded to whole blocks."""
        positions = jnp.arange(padded, dtype=jnp.int32)[None, None]
        if not mask.features() & {"segments", "key_valid"}:
            return cls(positions, None, None, dropout)
        query = jnp.ones((1, T), jnp.int32) if mask.query_segments is None else mask.query_segments
        key = query if mask.key_segments is None else mask.key_segments
        if mask.key_valid is not None:
            key = jnp.where(mask.key_valid, key, 0)
        # Keys that are padding get 0, queries that are padding -1: no two are equal.
        ids = (jnp.pad(x, ((0, 0), (0, padded - T)))[:, None] for x in (jnp.where(query == 0, -1, query), key))
        return cls(positions, *ids, dropout)

    def pairs(self, intervals, queries, keys):
        """Visibility, and dropout factors or None, of the pairs that two views bring together."""
        i = queries(self.positions)[..., :, None]
        j = keys(self.positions + 1)[..., None, :] - 1  # empty slots hold 0 and become -1, before every interval
        visible = functools.reduce(operator.or_, ((first <= j) & (j <= last) for first, last in intervals(i)))
        if self.query_ids is not None:
            visible &= queries(self.query_ids)[..., :, None] == keys(self.key_ids)[..., None, :]
        return visible, None if self.dropout is None else self.dropout.factors(i, j)


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


def _transpose(view, shape, gradient):
    """The gradient of `view`'s argument, of `shape`, given that of its result."""
    # Views are linear. A key that appears in several batches gets the sum of their gradients.
    return jax.linear_transpose(view, jax.ShapeDtypeStruct(shape, gradient.dtype))(gradient)[0]


def _local(window, causal, intervals):
    # A block of half a window and two before it: 1.5 W keys a query, instead of 2 W with whole windows.
    blocks = 2 if window >= HALVE_FROM and window % 2 == 0 else 1

    def queries(x):
        return _split(x, window // blocks)

    def keys(x):
        return _with_neighbours(queries(x), blocks, 0 if causal else blocks)

    return Rearranged(queries, keys, _join, intervals, before=window)


def _block(size, intervals):
    split = functools.partial(_split, size=size)
    return Rearranged(split, split, _join, intervals)


def _column(stride, intervals):
    # As a matrix of rows of L positions, transposed: a query's keys are its column.
    def transpose(x):
        return jnp.swapaxes(_split(x, stride), 2, 3)

    return Rearranged(transpose, transpose, lambda x: _join(jnp.swapaxes(x, 2, 3)), intervals, step=stride)


@dataclass(frozen=True)
class Decomposition:
    """The parts of a pattern over positions 0 .. T - 1."""

    pattern: Pattern
    T: int
    causal: bool

    def parts(self):
        """Parts with disjoint keys that together are the pattern's."""
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

    # Each method returns the runs (first, last) of positions that a query at i sees.

    def _all(self, i):
        return ((0, i if self.causal else self.T - 1),)

    def _near(self, window):
        def intervals(i):
            # |i - j| < W, cut off at both ends of the row.
            last = i if self.causal else jnp.minimum(i + window - 1, self.T - 1)
            return ((jnp.maximum(i - window + 1, 0), last),)

        return intervals

    def _outside(self, hole):
        def intervals(i):
            # The far part leaves the near part's run out: keys are disjoint, and outputs merge exactly.
            first, last = hole(i)
            return ((0, first - 1),) if self.causal else ((0, first - 1), (last + 1, self.T - 1))

        return intervals


def _unit(pattern) -> int:
    """The multiple to which rows are padded."""
    match pattern:
        case Union(near, far):
            return max(_unit(near), _unit(far))
        case Local(size) | Block(size) | Column(size):
            return size
        case Summary():
            return pattern.stride


def attend(query, key, value, mask, bias, dropout, scale):
    """Attention by one sparse pattern: [B, T, N, H]."""
    T = query.shape[1]
    # Padding needs no mask: it is in the future of causal queries, and other runs of keys end at T - 1.
    padded = T + -T % _unit(mask.pattern)
    arrays = (
        jnp.pad(x, ((0, 0), (0, 0), (0, padded - T), (0, 0))) for x in flash.heads_first(query, key, value, scale)
    )
    visibility = Visibility.create(mask, dropout, T, padded)
    out = _attend(Decomposition(mask.pattern, T, mask.causal), *arrays, pad_queries(bias, padded - T), visibility)
    return jnp.swapaxes(out[:, :, :T], 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(decomposition, query, key, value, bias, visibility):
    return _forward(decomposition, query, key, value, bias, visibility)[0]


def _forward(decomposition, query, key, value, bias, visibility):
    out, lse = flash.merge([part.forward(query, key, value, bias, visibility) for part in decomposition.parts()])
    out = out.astype(query.dtype)
    return out, (query, key, value, bias, visibility, out, lse)


def _backward(decomposition, residuals, gradient):
    query, key, value, bias, visibility, out, lse = residuals
    # Every part needs the merged lse, so that its weights are those of the whole softmax.
    rows = lse, gradient, flash.delta(gradient, out)
    parts = [part.backward(query, key, value, *rows, bias, visibility) for part in decomposition.parts()]
    *gradients, d_bias = (jax.tree.map(lambda *terms: sum(terms), *part) for part in zip(*parts, strict=True))
    return *(x.astype(query.dtype) for x in gradients), d_bias, None


_attend.defvjp(_forward, _backward)


def _unsupported(request: Request) -> str | None:
    if isinstance(request.pattern, Dense):
        return "the pattern is dense"
    missing = missing_features(request, {"causal", "segments", "key_segments", "key_valid"})
    if missing is None and request.T != request.S:
        return f"it needs as many queries as keys, not {request.T} and {request.S}"
    return missing


BACKEND = Backend("sparse", attend, _unsupported)
