"""Relative attention (Transformer-XL, Dai et al. 2019, section 3.3; XLNet): positions enter the scores as distances.

    score(i, j) = ((q_i + u) . k_j  +  (q_i + v) . r_(i-j)) * scale

The first product is ordinary attention with a shifted query. The second is one product with the keys of all distances,
whose columns are then moved to where they belong: it becomes the `bias` of the contract, so that every path which
takes a bias serves, with every mask. A path that works through the scores piece by piece makes it piece by piece too.
"""

import jax
import jax.numpy as jnp

from models.attention import attend
from models.attention.biases import Bias, ByDistance, Sum


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
    more: Bias | None = None,
    **options,
):
    """Attention [B, T, N, H] by content and distance; `mask` and `options` as `attend` has them.

    distance_keys [R, N, H], or for each row of the batch [B, R, N, H]: row c stands for the distance S - 1 - c between
    a query and a key, so that R = S rows reach from the farthest key to the query itself, and R = S + T - 1 rows reach
    into the future too. Where the mask hides all keys at R < S and farther, R rows do, of the distances R - 1 to 0.
    content_bias u and position_bias v, [N, H]: added to the query of either product. `more` is added to the scores too.
    """
    scale = query.shape[3] ** -0.5 if scale is None else scale
    by_distance = (query + position_bias.astype(query.dtype)[None, None]) * scale
    bias = ByDistance(
        query=jnp.swapaxes(by_distance, 1, 2),
        keys=jnp.swapaxes(distance_keys, -3, -2).reshape(-1, *(distance_keys.shape[i] for i in (-2, -3, -1))),
        reach=min(key.shape[1], distance_keys.shape[-3]),
    )
    bias = bias if more is None else Sum((bias, more))
    query = query + content_bias.astype(query.dtype)[None, None]
    return attend(query, key, value, mask, bias=bias, scale=scale, **options)


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
