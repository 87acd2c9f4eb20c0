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

BANDS = 8


@dataclass(frozen=True)
class Rows:
    """How queries [B, N, T, H] meet keys [B, N, S, H]: `rows` at a time.

    `limit(stop)` says how many leading keys the queries before `stop` may see, or is None where all see all.
    `block(start, rows, keys)` gives visibility, dropout factors or None and bias or None, all [B or 1, N or 1, rows,
    keys], of the queries from `start` (traced) against the first `keys` keys.
    """

    rows: int
    limit: Callable[[int], int] | None
    block: Callable

    def bands(self, T: int, S: int) -> list[tuple[int, int, int]]:
        """(first block, last block + 1, keys) of each band."""
        blocks = T // self.rows
        if self.limit is None:
            return [(0, blocks, S)]
        bands = max(1, min(BANDS, blocks // 4))
        edges = [blocks * band // bands for band in range(bands + 1)]
        return [(start, stop, min(S, self.limit(stop * self.rows))) for start, stop in itertools.pairwise(edges)]

    def forward(self, query, key, value):
        """Output [B, N, T, H] and lse [B, N, T, 1], float32, ready to be merged with those of other keys."""
        bands = []
        for start, stop, keys in self.bands(query.shape[2], key.shape[2]):

            def block(index, keys=keys):
                q = self._take(query, index)
                return flash.forward(q, key[:, :, :keys], value[:, :, :keys], *self._block(index, keys))

            bands.append([_stack(x) for x in jax.lax.map(block, jnp.arange(start, stop))])
        return tuple(jnp.concatenate(parts, axis=2) for parts in zip(*bands, strict=True))

    def backward(self, query, key, value, lse, gradient, delta, bias_shape=None):
        """Gradients by query, key and value, float32; and by a bias of `bias_shape`, if there is one."""
        d_key, d_value = (jnp.zeros(x.shape, jnp.float32) for x in (key, value))
        by_rows = []
        for start, stop, keys in self.bands(query.shape[2], key.shape[2]):

            def block(totals, index, keys=keys):
                q, *rows = (self._take(x, index) for x in (query, lse, gradient, delta))
                visible, *rest = self._block(index, keys)
                dq, dk, dv, scores = flash.backward(q, key[:, :, :keys], value[:, :, :keys], visible, *rows, *rest)
                rows = (dq,) if bias_shape is None else (dq, _shrink(scores, bias_shape))
                return (totals[0] + dk, totals[1] + dv), rows

            zeros = tuple(jnp.zeros_like(x[:, :, :keys]) for x in (d_key, d_value))
            (dk, dv), rows = jax.lax.scan(block, zeros, jnp.arange(start, stop))
            d_key, d_value = d_key.at[:, :, :keys].add(dk), d_value.at[:, :, :keys].add(dv)
            by_rows.append([_stack(x) for x in rows])
        d_query, *d_bias = (jnp.concatenate(parts, axis=2) for parts in zip(*by_rows, strict=True))
        return d_query, d_key, d_value, *d_bias

    def _take(self, x, index):
        return jax.lax.dynamic_slice_in_dim(x, index * self.rows, self.rows, axis=2)

    def _block(self, index, keys):
        return self.block(index * self.rows, self.rows, keys)


def _stack(blocks):
    """[blocks, B, N, rows, ...] -> [B, N, blocks * rows, ...]."""
    x = jnp.moveaxis(blocks, 0, 2)
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


def _shrink(scores, shape):
    """Gradient by rows of a bias [1 or B, 1 or N, T, S], from that by the scores of its leading keys."""
    summed = tuple(axis for axis in (0, 1) if shape[axis] == 1)
    scores = jnp.sum(scores, axis=summed, keepdims=True) if summed else scores
    return jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, shape[3] - scores.shape[3])))
