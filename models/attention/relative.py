"""Relative attention (Transformer-XL, Dai et al. 2019, section 3.3; XLNet): positions enter the scores as distances.

    score(i, j) = ((q_i + u) . k_j  +  (q_i + v) . r_(i-j)) * scale

The first product is ordinary attention with a shifted query. The second is one product with the keys of all distances,
whose columns then move to the keys at these distances: a bias, `ByDistance`, so that every backend with biases computes
it, under every mask, by tiles if it works by tiles.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from models.attention import flash
from models.attention.api import attend
from models.attention.biases import Bias, Sum, shift_rows


def attend_relative(
    query,
    key,
    value,
    distance_keys,
    content_bias,
    position_bias,
    mask,
    *,
    scale=None,
    bias: Bias | None = None,
    **options,
):
    """Attention [B, T, N, H] by content and distance; `mask`, `bias` and `options` as for `attend`.

    distance_keys [R, N, H], or for each row of the batch [B, R, N, H]: row c is distance S - 1 - c. R = S rows
        reach from the farthest key to the query itself, R = S + T - 1 into the future too. If the mask hides all keys
        at distance R < S and beyond, R rows suffice, for distances R - 1 to 0.
    content_bias u, position_bias v: [N, H].
    """
    scale = query.shape[3] ** -0.5 if scale is None else scale
    # Scaled here, since a bias is added to scaled scores.
    by_distance = (query + position_bias.astype(query.dtype)[None, None]) * scale
    relative = ByDistance(
        query=jnp.swapaxes(by_distance, 1, 2),
        keys=jnp.swapaxes(distance_keys, -3, -2).reshape(-1, *(distance_keys.shape[i] for i in (-2, -3, -1))),
        reach=min(key.shape[1], distance_keys.shape[-3]),
    )
    bias = relative if bias is None else Sum((relative, bias))
    # u and v replace the query's own position, on which scores must not depend (section 3.3).
    query = query + content_bias.astype(query.dtype)[None, None]
    return attend(query, key, value, mask, bias=bias, scale=scale, **options)


def distance_table(T: int, S: int, width: int, clamp: int = 0, both_ways: bool = False) -> jax.Array:
    """Sinusoids [R, width] of the distances S - 1 down to 0, or to 1 - T with `both_ways`: sines, then cosines.

    Distances beyond `clamp`, if it is not 0, count as `clamp`.
    """
    # The farthest first: the order in which a query meets its keys from left to right.
    distance = jnp.arange(S - 1, -T if both_ways else -1, -1, dtype=jnp.float32)
    if clamp:
        distance = jnp.clip(distance, -clamp, clamp)
    frequency = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angle = distance[:, None] * frequency[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


@struct.dataclass
class ByDistance:
    """The bias (q_i + v) . r_(i-j) * scale."""

    query: jax.Array  # [B, N, T, H]: q + v, scaled
    keys: jax.Array  # [B or 1, N, R, H], the farthest distance first
    reach: int = struct.field(pytree_node=False)  # row c is distance reach - 1 - c
    stored = False

    @property
    def products(self) -> int:
        return self.query.shape[3]

    def map_queries(self, function: Callable) -> "ByDistance":
        return self.replace(query=function(self.query))

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        if mask.offset is not None or mask.query_columns is not None:
            positions = mask.positions(start + jnp.arange(rows)) - first
            return relative_gather(_products(self.query, self.keys), positions, keys, self.reach)
        # A tile needs the distances of its last query to its first key and down: keys + rows - 1 of them. Rows beyond
        # the reach are zeros, and one more row of zeros on the left makes room for the shift.
        farthest = self.reach - (mask.memory + start + rows) + first
        if isinstance(start, int):
            needed = self.keys[:, :, max(farthest, 0) : min(farthest + keys + rows - 1, self.keys.shape[2])]
            zeros = 1 + max(-farthest, 0)
        else:
            row = farthest + jnp.arange(keys + rows - 1)
            row = jnp.where(row < 0, self.keys.shape[2], row)  # out of bounds: mode="fill" makes it 0
            needed = jnp.take(self.keys, row, axis=2, mode="fill", fill_value=0)
            zeros = 1
        zeros = jnp.zeros_like(self.keys, shape=(*self.keys.shape[:2], zeros, self.keys.shape[3]))
        return shift_rows(_products(self.query, jnp.concatenate([zeros, needed], axis=2)), keys)

    def pairs(self, position, ahead) -> jax.Array:
        # A key `ahead` columns after its query is at distance -ahead, in row reach - 1 - distance.
        row = self.reach - 1 + ahead[0, 0]
        row = jnp.where(row < 0, self.keys.shape[2], row)
        keys = jnp.take(self.keys, row, axis=2, mode="fill", fill_value=0)  # [B or 1, N, ..., rows, keys, H]
        return flash.product("...RH,...RKH->...RK", self.query, keys)


@jax.custom_vjp
def _products(query, keys):
    """query [B, N, T, H], keys [B or 1, N, R, H] -> [B, N, T, R] float32."""
    keys = jnp.broadcast_to(keys, (query.shape[0], *keys.shape[1:]))  # else XLA computes, and copies, the transpose
    return flash.product("BNTH,BNRH->BNTR", query, keys)


def _products_backward(residuals, gradient):
    query, keys = residuals
    gradient = jax.lax.optimization_barrier(gradient.astype(query.dtype))  # made once, for both products
    every_row = jnp.broadcast_to(keys, (query.shape[0], *keys.shape[1:]))
    d_query = flash.product("BNTR,BNRH->BNTH", gradient, every_row)
    summed = "NHR" if keys.shape[0] < query.shape[0] else "BNHR"  # shared by the rows of the batch, or one set a row
    d_keys = jax.lax.optimization_barrier(flash.product(f"BNTH,BNTR->{summed}", query, gradient))
    return d_query.astype(query.dtype), jnp.swapaxes(d_keys, -1, -2).reshape(keys.shape).astype(keys.dtype)


_products.defvjp(lambda *inputs: (_products(*inputs), inputs), _products_backward)


def relative_gather(by_row: jax.Array, positions: jax.Array, keys: int, reach: int) -> jax.Array:
    """[..., T, R] by row of distance -> [..., T, keys] by key, for queries at the key columns positions [B or 1, 1, T].

    Row c is distance reach - 1 - c.
    """
    row = reach - 1 - positions[..., None] + jnp.arange(keys)[None, None, None, :]
    row = jnp.clip(row, 0, by_row.shape[-1] - 1)
    return jnp.take_along_axis(by_row, jnp.broadcast_to(row, (*by_row.shape[:-1], keys)), axis=-1)
