"""A bias by distance: queries times a key for each distance (Dai et al. 2019, section 3.3)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from models.attention import flash
from models.attention.biases.shift import move, relative_gather


@struct.dataclass
class ByDistance:
    """One product with the keys of all distances, whose columns are then moved to where they belong."""

    query: jax.Array  # [B, N, T, H]: with v, and scaled
    keys: jax.Array  # [B or 1, N, R, H], the farthest distance first
    reach: int = struct.field(pytree_node=False)  # row c stands for the distance reach - 1 - c
    stored = False

    @property
    def products(self) -> int:
        return self.query.shape[3]

    def check(self, batch, heads, T, S):
        """`attend_relative` makes it fit."""

    def map_queries(self, function: Callable) -> "ByDistance":
        return self.replace(query=function(self.query))

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        if mask.offset is not None or mask.places is not None:
            positions = mask.positions(start + jnp.arange(rows)) - first
            return relative_gather(_products(self.query, self.keys), positions, keys, self.reach)
        # The farthest distance is that of the last query to the first key; rows beyond the reach are zeros.
        farthest = self.reach - (mask.memory + start + rows) + first
        if isinstance(start, int):
            needed = self.keys[:, :, max(farthest, 0) : min(farthest + keys + rows - 1, self.keys.shape[2])]
            zeros = 1 + max(-farthest, 0)
        else:
            row = farthest + jnp.arange(keys + rows - 1)
            row = jnp.where(row < 0, self.keys.shape[2], row)
            needed = jnp.take(self.keys, row, axis=2, mode="fill", fill_value=0)
            zeros = 1
        zeros = jnp.zeros_like(self.keys, shape=(*self.keys.shape[:2], zeros, self.keys.shape[3]))
        return move(_products(self.query, jnp.concatenate([zeros, needed], axis=2)), keys)

    def pairs(self, position, ahead) -> jax.Array:
        row = self.reach - 1 + ahead[0, 0]
        row = jnp.where(row < 0, self.keys.shape[2], row)
        keys = jnp.take(self.keys, row, axis=2, mode="fill", fill_value=0)  # [B or 1, N, ..., rows, keys, H]
        return flash.product("...RH,...RKH->...RK", self.query, keys)


@jax.custom_vjp
def _products(query, keys):
    """query [B, N, T, H], keys [B or 1, N, R, H] -> [B, N, T, R] float32."""
    keys = jnp.broadcast_to(keys, (query.shape[0], *keys.shape[1:]))  # else XLA computes, and copies, the transpose
    return flash.product("BNTH,BNRH->BNTR", query, keys)


def _products_backward(kept, gradient):
    query, keys = kept
    gradient = jax.lax.optimization_barrier(gradient.astype(query.dtype))  # made once, for both
    every_row = jnp.broadcast_to(keys, (query.shape[0], *keys.shape[1:]))
    d_query = flash.product("BNTR,BNRH->BNTH", gradient, every_row)
    summed = "NHR" if keys.shape[0] < query.shape[0] else "BNHR"  # rows of the batch that share keys, or have their own
    d_keys = jax.lax.optimization_barrier(flash.product(f"BNTH,BNTR->{summed}", query, gradient))
    return d_query.astype(query.dtype), jnp.swapaxes(d_keys, -1, -2).reshape(keys.shape).astype(keys.dtype)


_products.defvjp(lambda *inputs: (_products(*inputs), inputs), _products_backward)
