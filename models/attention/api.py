"""The call that every model makes: `attend`."""

import jax
import jax.numpy as jnp
import numpy as np

from models.attention import sharding
from models.attention.biases import as_bias
from models.attention.dispatch import make_request, resolve
from models.attention.masks import Mask
from models.attention.patterns import per_head
from models.errors import ModelError
from models.layers.dropout import AttentionDropout


def attend(
    query,
    key,
    value,
    mask: Mask,
    *,
    bias=None,
    dropout_rate=0.0,
    dropout_rng=None,
    dropout_rows=None,
    scale=None,
    backend="auto",
):
    """Attention of `query` [B, T, N, H] over `key`, `value` [B, S, G, H] as `mask` allows: [B, T, N, H].

    Values, and so the result, may have another head size than queries and keys. G key/value heads serve N query heads
    in equal runs. Queries that see nothing get zeros.

    bias: [B or 1, N or 1, T, S] or a `models.attention.biases.Bias`, added to the scaled scores.
    dropout_rate, dropout_rng: dropout of the probabilities. dropout_rows [B]: each row's index in the global batch, by
        which it draws; by default the index in these arrays.
    scale: factor of the scores, by default 1/sqrt(H).

    Raises ModelError for shapes that do not fit and for a backend that does not support the request.
    """
    B, T, heads, H = query.shape
    S = key.shape[1]
    bias = as_bias(bias)
    _check_shapes(query, key, value, bias)
    mask.check(T, S)
    scale = H**-0.5 if scale is None else float(scale)
    dropout = None
    if dropout_rate:
        rows = jnp.arange(B) if dropout_rows is None else dropout_rows
        dropout = AttentionDropout.create(dropout_rate, dropout_rng, rows, heads)
    patterns = per_head(mask.pattern, heads)
    outputs = {}  # pattern -> (its heads, their output): one call for all heads with the same pattern
    for pattern in dict.fromkeys(patterns):
        index = np.flatnonzero([one == pattern for one in patterns])
        inputs = _select_heads(index, query, key, value, bias, dropout)
        request = make_request(*inputs[:3], mask.replace(pattern=pattern), inputs[3], dropout is not None)
        run = resolve(backend, request).run
        outputs[pattern] = index, sharding.attend(run, *inputs[:3], mask.replace(pattern=pattern), *inputs[3:], scale)
    if len(outputs) == 1:
        return outputs[patterns[0]][1]
    order = np.argsort(np.concatenate([index for index, _ in outputs.values()]))
    return jnp.concatenate([out for _, out in outputs.values()], axis=2)[:, :, order]


def _select_heads(index, query, key, value, bias, dropout):
    """The arguments of `attend` for the query heads `index` alone."""
    heads, groups = query.shape[2], key.shape[2]
    if len(index) == heads:
        return query, key, value, bias, dropout
    groups_of = index // (heads // groups)  # key/value head of each query head
    bias = jax.tree.map(lambda x: x if x.shape[1] == 1 else x[:, index], bias)
    dropout = dropout and dropout.select_heads(index)
    return query[:, :, index], key[:, :, groups_of], value[:, :, groups_of], bias, dropout


def _check_shapes(query, key, value, bias):
    heads, groups = query.shape[2], key.shape[2]
    if key.shape[:3] != value.shape[:3] or key.shape[0] != query.shape[0] or key.shape[3] != query.shape[3]:
        raise ModelError(f"attention needs [B, T, N, H] and twice [B, S, G, H], not {query.shape}, {key.shape}.")
    if heads % groups:
        raise ModelError(f"kv_heads={groups}: does not divide heads={heads}. Use a divisor.")
    if bias is not None:
        bias.check(query.shape[0], heads, query.shape[1], key.shape[1])
