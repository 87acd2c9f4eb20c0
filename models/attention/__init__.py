"""Attention: one contract, several ways to compute it.

attend(query, key, value, mask)    picks a path, or takes the one that is named
chosen_path(...)                   says which one that is (`choice`)
"""

import jax
import jax.numpy as jnp
import numpy as np

from models.attention import sharding
from models.attention.biases import described
from models.attention.dispatch import PATHS, chosen_path, request_of, resolve
from models.attention.dropout import Dropout
from models.attention.masks import Mask
from models.attention.patterns import per_head
from models.errors import ModelError

__all__ = ["PATHS", "attend", "chosen_path"]


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
    path="auto",
):
    """Attention of `query` [B, T, N, H] over `key`, `value` [B, S, G, H] where `mask` lets it: [B, T, N, H].

    Values, and so the result, may be of another head size than queries and keys. G key/value heads serve N query heads
    in equal runs. `bias` [B or 1, N or 1, T, S], or one that is described (`biases`), is added to the scaled scores.
    `scale` is 1/sqrt(H) unless given. Queries that see nothing get zeros. Dropout acts on the probabilities; rows draw
    by their places `dropout_rows` [B] in the whole global batch, by default that in these arrays. Raises ModelError for
    sizes that cannot be and for a path that does not support the request.
    """
    B, T, heads, H = query.shape
    S = key.shape[1]
    bias = described(bias)
    _check_shapes(query, key, value, bias, dropout_rate, dropout_rng)
    mask.check(T, S)
    scale = H**-0.5 if scale is None else float(scale)
    dropout = None
    if dropout_rate:
        rows = jnp.arange(B) if dropout_rows is None else dropout_rows
        dropout = Dropout.of_rows(dropout_rate, dropout_rng, rows, heads)
    patterns = per_head(mask.pattern, heads)
    outputs = {}  # pattern -> (its heads, their output); one call for the heads that share a pattern
    for pattern in dict.fromkeys(patterns):
        index = np.flatnonzero([one == pattern for one in patterns])
        picked = _pick_heads(index, query, key, value, bias, dropout)
        request = request_of(*picked[:3], mask.replace(pattern=pattern), picked[3], dropout is not None)
        run = resolve(path, request).run
        outputs[pattern] = index, sharding.attend(run, *picked[:3], mask.replace(pattern=pattern), *picked[3:], scale)
    if len(outputs) == 1:
        return outputs[patterns[0]][1]
    order = np.argsort(np.concatenate([index for index, _ in outputs.values()]))
    return jnp.concatenate([out for _, out in outputs.values()], axis=2)[:, :, order]


def _pick_heads(index, query, key, value, bias, dropout):
    """The arguments of `attend` for the query heads `index` alone."""
    heads, groups = query.shape[2], key.shape[2]
    if len(index) == heads:
        return query, key, value, bias, dropout
    groups_of = index // (heads // groups)  # key/value head of each chosen query head
    bias = jax.tree.map(lambda x: x if x.shape[1] == 1 else x[:, index], bias)
    dropout = dropout and dropout.heads(index)
    return query[:, :, index], key[:, :, groups_of], value[:, :, groups_of], bias, dropout


def _check_shapes(query, key, value, bias, dropout_rate, dropout_rng):
    heads, groups = query.shape[2], key.shape[2]
    if key.shape[:3] != value.shape[:3] or key.shape[0] != query.shape[0] or key.shape[3] != query.shape[3]:
        raise ModelError(
            "attention needs query [B, T, N, H] and key, value [B, S, G, H]; "
            f"got {query.shape}, {key.shape}, {value.shape}"
        )
    if heads % groups:
        raise ModelError(f"{heads} attention heads cannot share {groups} key/value heads; kv_heads must divide heads")
    if bias is not None:
        bias.check(query.shape[0], heads, query.shape[1], key.shape[1])
    if not 0 <= dropout_rate < 1:
        raise ModelError(f"attention dropout_rate is {dropout_rate}; it must be at least 0 and below 1")
    if dropout_rate and dropout_rng is None:
        raise ModelError("attention dropout needs dropout_rng; give one or set dropout_rate to 0")
