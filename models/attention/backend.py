"""Backends of attention: what they are, what they refuse, and the reference that all others are tested against."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from models.attention.biases import Bias, full_bias
from models.attention.masks import Mask
from models.attention.patterns import Pattern
from models.layers.dropout import AttentionDropout


@dataclass(frozen=True)
class Request:
    """Static facts of one call, by which a backend decides whether it supports it."""

    T: int
    S: int
    heads: int
    kv_heads: int
    head_size: int  # of queries and keys
    value_size: int
    dtype: np.dtype
    pattern: Pattern
    features: frozenset[str]
    bias: Bias | None  # its arrays may be shapes
    dropout: bool
    platform: str


@dataclass(frozen=True)
class Backend:
    """One implementation of attention.

    run(query, key, value, mask, bias, dropout, scale): [B, T, N, H]
    unsupported(request): the reason, format_measure to follow "because", or None
    inefficient(request): `auto` prefers a later backend
    """

    name: str
    run: Callable[[jax.Array, jax.Array, jax.Array, Mask, Bias | None, AttentionDropout | None, float], jax.Array]
    unsupported: Callable[[Request], str | None]
    inefficient: Callable[[Request], bool] = lambda request: False


def missing_features(request: Request, supported: set[str]) -> str | None:
    """The reason of a backend that handles only `supported` mask features."""
    missing = sorted(request.features - supported)
    return f"it has no {' and no '.join(missing)}" if missing else None


def _attend(query, key, value, mask, bias, dropout, scale):
    """softmax(scale * query · key + bias, over visible keys) · value: [B, T, N, H] in the query's dtype."""
    weights = attention_weights(query, key, mask, bias, scale)
    if dropout is not None:
        weights *= dropout.tile(0, query.shape[1], 0, key.shape[1])
    value = jnp.repeat(value.astype(jnp.float32), query.shape[2] // value.shape[2], axis=2)
    out = jnp.einsum("BNTS,BSNH->BTNH", weights, value, precision=jax.lax.Precision.HIGHEST)
    return out.astype(query.dtype)


def attention_weights(query, key, mask: Mask, bias: Bias | None, scale: float) -> jax.Array:
    """softmax(scale * query · key + bias, over visible keys): [B, N, T, S] float32, zeros where nothing is visible."""
    T, S, heads = query.shape[1], key.shape[1], query.shape[2]
    # In float32 with exact products: TPUs and GPUs otherwise round the factors to bfloat16 or TF32.
    query, key = query.astype(jnp.float32), jnp.repeat(key.astype(jnp.float32), heads // key.shape[2], axis=2)
    scores = jnp.einsum("BTNH,BSNH->BNTS", query, key, precision=jax.lax.Precision.HIGHEST) * scale
    if bias is not None:
        scores += full_bias(bias, mask, T, S).astype(jnp.float32)
    visible = mask.dense(T, S, heads)
    # -1e30 and not -inf: a row that sees nothing would be inf - inf. It becomes uniform, and the product with `visible`
    # makes it zero, in values and in gradients.
    return jax.nn.softmax(jnp.where(visible, scores, -1e30), axis=-1) * visible


REFERENCE = Backend("reference", _attend, lambda request: None)
