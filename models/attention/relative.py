"""Relative attention (Transformer-XL, Dai et al. 2019, section 3.3; XLNet): positions enter the scores as distances.

    score(i, j) = ((q_i + u) . k_j  +  (q_i + v) . r_(i-j)) * scale

The first product is ordinary attention with a shifted query. The second is one product with the keys of all distances,
whose columns are then moved to where they belong: it becomes the `bias` of the contract, so that every path which
takes a bias serves, with every mask.
"""

import jax
import jax.numpy as jnp

from models.attention import attend


def attend_relative(query, key, value, distance_keys, content_bias, position_bias, mask, *, scale=None, **options):
    """Attention [B, T, N, H] by content and distance; `mask` and `options` as `attend` has them.

    distance_keys [R, N, H]: row c stands for the distance S - 1 - c between a query and a key, so that R = S rows
    reach from the farthest key to the query itself, and R = S + T - 1 rows reach into the future too. Where the mask
    hides all keys at R < S and farther, R rows do, of the distances R - 1 down to 0.
    content_bias u and position_bias v, [N, H]: added to the query of either product.
    """
    T, S = query.shape[1], key.shape[1]
    scale = query.shape[3] ** -0.5 if scale is None else scale
    by_row = jnp.einsum(
        "BTNH,RNH->BNTR",
        (query + position_bias.astype(query.dtype)[None, None]) * scale,
        distance_keys,
        preferred_element_type=jnp.float32,
    )
    if mask.offset is None:
        bias = relative_shift(by_row, S)
    else:
        bias = relative_gather(by_row, mask.positions(jnp.arange(T)), S)
    query = query + content_bias.astype(query.dtype)[None, None]
    return attend(query, key, value, mask, bias=bias, scale=scale, **options)


def relative_shift(by_row: jax.Array, keys: int) -> jax.Array:
    """[..., T, R] by row of distance -> [..., T, keys] by key, for queries at the last T of the keys.

    Row i moves left by T - 1 - i: one column of zeros on the left, and the same numbers read in rows that are one
    shorter (Dai et al. 2019, appendix B). Entries that come from beyond the first R columns are those of future keys,
    which mean nothing unless R reaches there; keys that R does not reach get zeros.
    """
    *batch, T, R = by_row.shape
    unreached = max(keys - R, 0)
    padded = jnp.pad(by_row, [(0, 0)] * (len(batch) + 1) + [(1 + unreached, 0)])
    shifted = padded.reshape(*batch, unreached + R + 1, T)[..., 1:, :]
    return shifted.reshape(*batch, T, unreached + R)[..., :keys]


def relative_gather(by_row: jax.Array, positions: jax.Array, keys: int) -> jax.Array:
    """The same by look-up, for queries anywhere: positions [B or 1, 1, T] are the key columns at which they stand."""
    row = min(keys, by_row.shape[-1]) - 1 - positions[..., None] + jnp.arange(keys)[None, None, None, :]
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
