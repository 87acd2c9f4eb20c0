"""Dense attention a block of queries at a time, each against a whole row of keys: O(T) memory for a fixed block.

Unlike online softmax over blocks of keys (Rabe & Staats 2021) nothing needs rescaling; the scores in flight are
rows * S. Blocks come in bands, each with as many leading keys as its last query may see, so that causal attention
leaves out most of its future's products: with 8 bands, 9/16 of the square is computed.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from models.attention import flash
from models.attention.biases import join_queries, split_queries, summed

BANDS = 8


@dataclass(frozen=True)
class Rows:
    """How queries [B, N, T, H] meet keys [B, N, S, H]: `rows` at a time.

    `limit(stop)` says how many leading keys the queries before `stop` may see, or is None where all see all.
    `block(start, rows, keys)` gives visibility, and dropout factors or None, both [B or 1, N or 1, rows, keys], of the
    queries from `start` (traced) against the first `keys` keys; `added(bias, start, rows, keys)` likewise what a bias
    adds that holds those queries alone.
    """

    rows: int
    limit: Callable[[int], int] | None
    block: Callable
    added: Callable | None = None

    def bands(self, T: int, S: int) -> list[tuple[int, int, int]]:
        """(first block, last block + 1, keys) of each band."""
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

            def block(index, keys=keys):
                q = self._take(query, index)
                added = None if bias is None else self._added(self._bias(bias, index), index, keys)
                return flash.forward(q, key[:, :, :keys], value[:, :, :keys], *self._block(index, keys), added)

            bands.append([_stack(x) for x in jax.lax.map(block, jnp.arange(start, stop))])
        return tuple(jnp.concatenate(parts, axis=2) for parts in zip(*bands, strict=True))

    def backward(self, query, key, value, lse, gradient, delta, bias=None):
        """Gradients by query, key and value, float32; and by the bias, in its own types, None without one."""
        d_key, d_value = (jnp.zeros(x.shape, jnp.float32) for x in (key, value))
        shared = None if bias is None else split_queries(bias)[0]  # what all queries have in common
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
                own = self._bias(bias, index)
                added, pull = jax.vjp(lambda own: self._added(own, index, keys), own)
                dq, dk, dv, scores = flash.backward(q, *seen, visible, *rows, drop, added)
                shared, by_query = split_queries(*pull(summed(scores, added.shape).astype(added.dtype)))
                shared = jax.tree.map(jnp.add, totals[2], shared)
                return (totals[0] + dk, totals[1] + dv, shared), [dq, *by_query]

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

    def _bias(self, bias, index):
        """The bias of a block's queries alone."""
        return bias.map_queries(lambda x: self._take(x, index))

    def _added(self, own, index, keys):
        return self.added(own, index * self.rows, self.rows, keys)


def _stack(blocks):
    """[blocks, B, N, rows, ...] -> [B, N, blocks * rows, ...]."""
    x = jnp.moveaxis(blocks, 0, 2)
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])
