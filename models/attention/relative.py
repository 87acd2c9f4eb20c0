"""Relative attention (Transformer-XL, Dai et al. 2019, section 3.3; XLNet): positions enter the scores as distances.

    score(i, j) = ((q_i + u) . k_j  +  (q_i + v) . r_(i-j)) * scale

The first product is ordinary attention with a shifted query. The second is one product with the keys of all distances,
whose columns are then moved to where they belong: it becomes the `bias` of the contract, so that every path which
takes a bias serves, with every mask. A path that works through the scores piece by piece makes it piece by piece too.
"""

import jax
import jax.numpy as jnp
from flax import struct

from models.attention import attend, flash


def attend_relative(query, key, value, distance_keys, content_bias, position_bias, mask, *, scale=None, **options):
    """Attention [B, T, N, H] by content and distance; `mask` and `options` as `attend` has them.

    distance_keys [R, N, H]: row c stands for the distance S - 1 - c between a query and a key, so that R = S rows
    reach from the farthest key to the query itself, and R = S + T - 1 rows reach into the future too. Where the mask
    hides all keys at R < S and farther, R rows do, of the distances R - 1 down to 0.
    content_bias u and position_bias v, [N, H]: added to the query of either product.
    """
    scale = query.shape[3] ** -0.5 if scale is None else scale
    by_distance = (query + position_bias.astype(query.dtype)[None, None]) * scale
    bias = ByDistance(
        query=jnp.swapaxes(by_distance, 1, 2),
        keys=jnp.swapaxes(distance_keys, 0, 1)[None],
        reach=min(key.shape[1], distance_keys.shape[0]),
    )
    query = query + content_bias.astype(query.dtype)[None, None]
    return attend(query, key, value, mask, bias=bias, scale=scale, **options)


@struct.dataclass
class ByDistance:
    """The second product, of whichever scores it is asked for."""

    query: jax.Array  # [B, N, T, H]: with v, and scaled
    keys: jax.Array  # [1, N, R, H], the farthest distance first
    reach: int = struct.field(pytree_node=False)  # row c stands for the distance reach - 1 - c

    def tile(self, mask, start: int, rows: int, first: int, keys: int) -> jax.Array:
        """Bias [B, N, rows, keys] of the queries from `start` on and the keys from `first` on, float32."""
        query, R = self.query[:, :, start : start + rows], self.keys.shape[2]
        if mask.offset is not None:
            positions = mask.positions(jnp.arange(start, start + rows)) - first
            return relative_gather(_products(query, self.keys), positions, keys, self.reach)
        # The farthest distance is that of the last query to the first key; rows beyond the reach are zeros.
        farthest = self.reach - (mask.memory + start + rows) + first
        needed = self.keys[:, :, max(farthest, 0) : min(farthest + keys + rows - 1, R)]
        zeros = jnp.zeros_like(self.keys, shape=(*self.keys.shape[:2], 1 + max(-farthest, 0), self.keys.shape[3]))
        return _move(_products(query, jnp.concatenate([zeros, needed], axis=2)), keys)


@jax.custom_vjp
def _products(query, keys):
    """query [B, N, T, H], keys [1, N, R, H] -> [B, N, T, R] float32."""
    keys = jnp.broadcast_to(keys, (query.shape[0], *keys.shape[1:]))  # else XLA computes, and copies, the transpose
    return flash.product("BNTH,BNRH->BNTR", query, keys)


def _products_backward(kept, gradient):
    query, keys = kept
    gradient = jax.lax.optimization_barrier(gradient.astype(query.dtype))  # made once, for both
    every_row = jnp.broadcast_to(keys, (query.shape[0], *keys.shape[1:]))
    d_query = flash.product("BNTR,BNRH->BNTH", gradient, every_row)
    d_keys = jnp.swapaxes(jax.lax.optimization_barrier(flash.product("BNTH,BNTR->NHR", query, gradient)), 1, 2)
    return d_query.astype(query.dtype), d_keys[None].astype(keys.dtype)


_products.defvjp(lambda *inputs: (_products(*inputs), inputs), _products_backward)


def relative_shift(by_row: jax.Array, keys: int) -> jax.Array:
    """[..., T, R] by row of distance -> [..., T, keys] by key, for queries at the last T of the keys.

    Row i moves left by T - 1 - i: one column of zeros on the left, and the same numbers read in rows that are one
    shorter (Dai et al. 2019, appendix B). Entries that come from beyond the first R columns are those of future keys,
    which mean nothing unless R reaches there; keys that R does not reach get zeros.
    """
    unreached = max(keys - by_row.shape[-1], 0)
    return _move(jnp.pad(by_row, [(0, 0)] * (by_row.ndim - 1) + [(1 + unreached, 0)]), keys)


def _move(padded, keys):
    """The shift, of [..., T, 1 + R] with its column of zeros."""
    *batch, T, R = padded.shape
    shifted = padded.reshape(*batch, T * R)[..., T:]  # flat: a reading from another place, not a copy of rows
    return shifted.reshape(*batch, T, R - 1)[..., :keys]


def relative_gather(by_row: jax.Array, positions: jax.Array, keys: int, reach: int) -> jax.Array:
    """The same by look-up, for queries anywhere: positions [B or 1, 1, T] are the key columns at which they stand.

    Row c stands for the distance reach - 1 - c.
    """
    row = reach - 1 - positions[..., None] + jnp.arange(keys)[None, None, None, :]
    row = jnp.clip(row, 0, by_row.shape[-1] - 1)
    return jnp.take_along_axis(by_row, jnp.broadcast_to(row, (*by_row.shape[:-1], keys)), axis=-1)


def distance_table(T: int, S: int, width: int, clamp: int = 0, both_ways: bool = False) -> jax.Array:
    """Sinusoids [R, width] of the distances S - 1 down to 0, or to 1 - T with `both_ways`: sines, then cosines.

    Distances beyond `clamp`, if it is not 0, are taken for it.
    """
    distance = jnp.arange(S - 1, -T if both_ways else -1, -1, dtype=jnp.float32)
    if clamp:
        distance = jnp.clip(distance, -clamp, clamp)
    frequency = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angle = distance[:, None] * frequency[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
