"""Dense attention as XLA compiles it well: one batched product, one softmax, one batched product.

The mask stays a formula of positions, fused into the softmax: no array of it is ever written. Grouped queries stay
grouped, so keys and values are never copied. Good for short rows and for decoding; memory grows as T * S.
"""

import jax
import jax.numpy as jnp

from models.attention.path import Path
from models.patterns import Dense


def attend(query, key, value, mask, bias, dropout, scale):
    """Attention with scores and softmax in float32 and products in the query's dtype: [B, T, N, H]."""
    B, T, heads, H = query.shape
    S, groups = key.shape[1], key.shape[2]
    query = (query * scale).reshape(B, T, groups, heads // groups, H)
    scores = jnp.einsum("BTGRH,BSGH->BGRTS", query, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores += _grouped(bias, groups).astype(jnp.float32)
    visible = mask.tile(0, T, 0, S)[:, :, None]
    scores = jnp.where(visible, scores, -1e30)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - top)
    if _some_row_sees_nothing(mask):
        weights *= visible
    total = jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-30)
    weights = weights / total
    if dropout is not None:
        weights *= _grouped(dropout.tile(0, T, 0, S), groups)
    out = jnp.einsum("BGRTS,BSGH->BTGRH", weights.astype(value.dtype), value)
    return out.reshape(B, T, heads, H)


def _grouped(array, groups):
    """[B or 1, N or 1, T, S] -> [B or 1, G or 1, N/G or 1, T, S]."""
    B, heads, T, S = array.shape
    groups = 1 if heads == 1 else groups
    return array.reshape(B, groups, heads // groups, T, S)


def _some_row_sees_nothing(mask):
    """Whether a query may be blind; where none can be, a product over the whole matrix is saved."""
    simple = isinstance(mask.pattern, Dense) and mask.features() <= {"causal", "memory", "offset"}
    return not simple


PATH = Path("xla", attend, lambda request: None)
