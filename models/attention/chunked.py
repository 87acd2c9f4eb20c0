"""Dense attention in O(T) memory: a block of queries at a time, against all its keys, recomputed in the backward pass.

Unlike online softmax over blocks of keys (Rabe & Staats 2021) nothing is rescaled; the scores in flight are ROWS * S.
Blocks are grouped into bands, each with as many leading keys as its last query may see, so that causal attention skips
most of its future's products.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from models.attention import flash
from models.attention.backend import Backend
from models.attention.biases import join_queries, pad_queries, split_queries, sum_to

ROWS = 128  # queries of a block: enough for a full product on a CPU core or a TPU's 128 x 128 unit
BANDS = 8  # more would save less than 1/16 of the square, and each is a loop to compile


@dataclass(frozen=True)
class QueryBlocks:
    """Attention of queries [B, N, T, H] to keys [B, N, S, H], a block of `rows` queries at a time.

    limit(stop): number of leading keys that queries before `stop` may see; None if all see all.
    block(start, rows, keys): visibility, and dropout factors or None, both [B or 1, N or 1, rows, keys], of the queries
        from `start` (traced) against the first `keys` keys.
    added(bias, start, rows, keys): likewise the scores of a bias that holds those queries alone.
    """

    rows: int
    limit: Callable[[int], int] | None
    block: Callable
    added: Callable | None = None

    def bands(self, T: int, S: int) -> list[tuple[int, int, int]]:
        """(first block, last block + 1, keys) of each band."""
        # Causal queries of the first band see 1/8 of the keys, and so on: (1 + 2 + .. + 8) / 64 = 9/16 of the square.
        blocks = T // self.rows
        if self.limit is None:
            return [(0, blocks, S)]
        bands = max(1, min(BANDS, blocks // 4))
        edges = [blocks * band // bands for band in range(bands + 1)]
        return [(start, stop, min(S, self.limit(stop * self.rows))) for start, stop in itertools.pairwise(edges)]

    def forward(self, query, key, value, bias=None):
        """Output [B, N, T, H] and lse [B, N, T, 1], float32, ready to be merged with those of other keys."""
        bands = []
        for start, stop, keys in self.bands(query.shape[2], key.shape[2]):
            # A block's scores exist only within the loop's body: rows * keys floats at a time.
            def block(index, keys=keys):
                q = self._take(query, index)
                added = None if bias is None else self._added(self._take_bias(bias, index), index, keys)
                return flash.forward(q, key[:, :, :keys], value[:, :, :keys], *self._block(index, keys), added)

            bands.append([_stack(x) for x in jax.lax.map(block, jnp.arange(start, stop))])
        return tuple(jnp.concatenate(parts, axis=2) for parts in zip(*bands, strict=True))

    def backward(self, query, key, value, lse, gradient, delta, bias=None):
        """Gradients by query, key and value, float32, and by the bias, in its dtypes, or None."""
        # Gradients by keys are sums over blocks, carried through the scan; those by queries are stacked.
        d_key, d_value = (jnp.zeros(x.shape, jnp.float32) for x in (key, value))
        shared = None if bias is None else split_queries(bias)[0]  # leaves that all queries share
        d_shared = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shared)
        by_rows = []
        for start, stop, keys in self.bands(query.shape[2], key.shape[2]):

            def block(totals, index, keys=keys):
                q, *rows = (self._take(x, index) for x in (query, lse, gradient, delta))
                seen = key[:, :, :keys], value[:, :, :keys]
                visible, drop = self._block(index, keys)
                if bias is None:
                    dq, dk, dv, _ = flash.backward(q, *seen, visible, *rows, drop)
                    return (totals[0] + dk, totals[1] + dv, None), [dq]
                own = self._take_bias(bias, index)
                # The block's bias is computed again, and its gradient pulled back through that.
                added, pull = jax.vjp(lambda own: self._added(own, index, keys), own)
                dq, dk, dv, scores = flash.backward(q, *seen, visible, *rows, drop, added)
                shared, by_query = split_queries(*pull(sum_to(scores, added.shape).astype(added.dtype)))
                shared = jax.tree.map(jnp.add, totals[2], shared)
                return (totals[0] + dk, totals[1] + dv, shared), [dq, *by_query]

            # A band adds gradients to the leading keys that it sees.
            zeros = tuple(jnp.zeros_like(x[:, :, :keys]) for x in (d_key, d_value))
            (dk, dv, d_shared), rows = jax.lax.scan(block, (*zeros, d_shared), jnp.arange(start, stop))
            d_key, d_value = d_key.at[:, :, :keys].add(dk), d_value.at[:, :, :keys].add(dv)
            by_rows.append([_stack(x) for x in rows])
        d_query, *by_query = (jnp.concatenate(parts, axis=2) for parts in zip(*by_rows, strict=True))
        if bias is None:
            return d_query, d_key, d_value, None
        d_bias = jax.tree.map(lambda d, x: d.astype(x.dtype), join_queries(d_shared, by_query), bias)
        return d_query, d_key, d_value, d_bias

    def _take(self, x, index):
        return jax.lax.dynamic_slice_in_dim(x, index * self.rows, self.rows, axis=2)

    def _block(self, index, keys):
        return self.block(index * self.rows, self.rows, keys)

    def _take_bias(self, bias, index):
        return bias.map_queries(lambda x: self._take(x, index))

    def _added(self, own, index, keys):
        return self.added(own, index * self.rows, self.rows, keys)


def _stack(blocks):
    """[blocks, B, N, rows, ...] -> [B, N, blocks * rows, ...]."""
    x = jnp.moveaxis(blocks, 0, 2)
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


def attend(query, key, value, mask, bias, dropout, scale):
    """Attention under any mask: [B, T, N, H]. Peak temporary memory is a few times B * N * ROWS * S floats."""
    T = query.shape[1]
    padding = -T % ROWS
    query, key, value = flash.heads_first(query, key, value, scale)
    if padding:  # whole blocks only; the added queries are cut off again
        query = jnp.pad(query, ((0, 0), (0, 0), (0, padding), (0, 0)))
        mask, bias = _pad_mask(mask, padding), pad_queries(bias, padding)
    return jnp.swapaxes(_attend(query, key, value, mask, bias, dropout)[:, :, :T], 1, 2)


def _pad_mask(mask, padding):
    pad = functools.partial(jnp.pad, pad_width=((0, 0), (0, padding)))
    if mask.query_segments is not None:
        # Keys are not padded, so they keep the segments of the queries before padding.
        key_segments = mask.query_segments if mask.key_segments is None else mask.key_segments
        mask = mask.replace(query_segments=pad(mask.query_segments), key_segments=key_segments)
    if mask.query_ranks is not None:
        mask = mask.replace(query_ranks=pad(mask.query_ranks))
    if mask.query_columns is not None:
        mask = mask.replace(query_columns=pad(mask.query_columns))
    return mask


def _query_blocks(mask, dropout):
    def block(start, rows, keys):
        drop = None if dropout is None else dropout.tile(start, rows, 0, keys)
        return mask.tile(start, rows, 0, keys), drop

    def added(bias, start, rows, keys):
        return bias.tile(mask, start, rows, 0, keys)

    # With an offset the queries' positions are traced, and a prefix opens future keys: then all blocks see all keys.
    static_future = mask.causal and mask.offset is None and mask.prefix is None
    return QueryBlocks(ROWS, (lambda stop: mask.memory + stop) if static_future else None, block, added)


@jax.custom_vjp
def _attend(query, key, value, mask, bias, dropout):
    return _forward(query, key, value, mask, bias, dropout)[0]


def _forward(query, key, value, mask, bias, dropout):
    out, lse = flash.merge([_query_blocks(mask, dropout).forward(query, key, value, bias)])
    out = out.astype(query.dtype)
    return out, (query, key, value, mask, bias, dropout, out, lse)


def _backward(residuals, gradient):
    query, key, value, mask, bias, dropout, out, lse = residuals
    delta = flash.delta(gradient, out)
    *gradients, d_bias = _query_blocks(mask, dropout).backward(query, key, value, lse, gradient, delta, bias)
    return *(x.astype(query.dtype) for x in gradients), None, d_bias, None


_attend.defvjp(_forward, _backward)

BACKEND = Backend("chunked", attend, lambda request: None)
