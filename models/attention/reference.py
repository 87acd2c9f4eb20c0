"""The oracle: dense mask, float32, the formula as the papers write it. Every other path is tested against it."""

import jax
import jax.numpy as jnp

from models.attention.backend import Path
from models.attention.biases import whole


def attend(query, key, value, mask, bias, dropout, scale):
    """softmax(scale * query · key + bias, over visible keys) · value: [B, T, N, H] in the query's dtype."""
    T, S, heads = query.shape[1], key.shape[1], query.shape[2]
    dtype, precision = query.dtype, jax.lax.Precision.HIGHEST
    query = query.astype(jnp.float32)
    key, value = (jnp.repeat(x.astype(jnp.float32), heads // x.shape[2], axis=2) for x in (key, value))
    scores = jnp.einsum("BTNH,BSNH->BNTS", query, key, precision=precision) * scale
    if bias is not None:
        scores += whole(bias, mask, T, S).astype(jnp.float32)
    visible = mask.dense(T, S, heads)
    # A row that sees nothing would divide 0 by 0: it is given zeros, in values and in gradients.
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e30), axis=-1) * visible
    if dropout is not None:
        weights *= dropout.tile(0, T, 0, S)
    return jnp.einsum("BNTS,BSNH->BTNH", weights, value, precision=precision).astype(dtype)


PATH = Path("reference", attend, lambda request: None)
