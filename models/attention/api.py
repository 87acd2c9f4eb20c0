"""The call that every model makes, `attend`, and the choice of its backend.

"auto" takes the first backend that supports a request and is efficient on it. A named backend that does not support
the request is an error that names those that do; nothing falls back silently.
"""

import jax
import jax.numpy as jnp
import numpy as np

from models.attention import backend as backends
from models.attention import chunked, sharding, sparse, xla
from models.attention.backend import Backend, Request
from models.attention.biases import as_bias
from models.attention.kernels import gpu, splash
from models.attention.masks import Mask
from models.attention.patterns import per_head
from models.errors import ModelError
from models.layers.dropout import AttentionDropout

# In the order in which `auto` tries them.
BACKENDS: dict[str, Backend] = {
    one.name: one
    for one in (splash.BACKEND, gpu.CUDNN, gpu.TRITON, sparse.BACKEND, xla.BACKEND, chunked.BACKEND, backends.REFERENCE)
}


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

    Raises ModelError for a backend that does not support the request.
    """
    B, T, heads, H = query.shape
    S, groups = key.shape[1:3]
    assert key.shape == (B, S, groups, H) and value.shape[:3] == (B, S, groups) and heads % groups == 0
    mask.check(T, S)
    bias = as_bias(bias)
    scale = H**-0.5 if scale is None else float(scale)
    dropout = None
    if dropout_rate:
        rows = jnp.arange(B) if dropout_rows is None else dropout_rows
        dropout = AttentionDropout.create(dropout_rate, dropout_rng, rows, heads)
    patterns = per_head(mask.pattern, heads)
    indices, outputs = [], []
    # One call for all heads with the same pattern: the others' keys are never multiplied.
    for pattern in dict.fromkeys(patterns):
        index, own_mask = np.flatnonzero([one == pattern for one in patterns]), mask.replace(pattern=pattern)
        *arrays, own_bias, own_dropout = _select_heads(index, query, key, value, bias, dropout)
        run = resolve(backend, make_request(*arrays, own_mask, own_bias, bool(dropout_rate))).run
        outputs.append(sharding.attend(run, *arrays, own_mask, own_bias, own_dropout, scale))
        indices.append(index)
    if len(outputs) == 1:
        return outputs[0]
    # Back to the order of the heads.
    return jnp.concatenate(outputs, axis=2)[:, :, np.argsort(np.concatenate(indices))]


def _select_heads(index, query, key, value, bias, dropout):
    """The arguments of `attend` for the query heads `index` alone."""
    heads, groups = query.shape[2], key.shape[2]
    if len(index) == heads:
        return query, key, value, bias, dropout
    # Query head n reads key/value head n // (N / G).
    groups_of = index // (heads // groups)  # key/value head of each query head
    # A head axis of 1 serves all heads.
    bias = jax.tree.map(lambda x: x if x.shape[1] == 1 else x[:, index], bias)
    dropout = dropout and dropout.select_heads(index)
    return query[:, :, index], key[:, :, groups_of], value[:, :, groups_of], bias, dropout


def select_backends(query, key, value, mask: Mask, *, bias=None, dropout_rate=0.0, backend="auto", platform=None):
    """Names of the backends that `attend` uses for arrays (or shapes) like these: one for each pattern of the heads."""
    dropout, bias = dropout_rate > 0, as_bias(bias)
    masks = (mask.replace(pattern=one) for one in dict.fromkeys(per_head(mask.pattern, query.shape[2])))
    return tuple(resolve(backend, make_request(query, key, value, m, bias, dropout, platform)).name for m in masks)


def make_request(query, key, value, mask: Mask, bias, dropout: bool, platform=None) -> Request:
    """The static facts of a call with one pattern, on `platform` or the one that is compiled for."""
    return Request(
        T=query.shape[1],
        S=key.shape[1],
        heads=query.shape[2],
        kv_heads=key.shape[2],
        head_size=query.shape[3],
        value_size=value.shape[3],
        dtype=np.dtype(query.dtype),
        pattern=mask.pattern,
        features=mask.features(),
        bias=bias,
        dropout=dropout,
        platform=platform or _platform(),
    )


def _platform() -> str:
    # The mesh in scope may be of devices that are compiled for from another machine (`pretrain plan`).
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def resolve(name: str | Backend, request: Request) -> Backend:
    """The backend called `name`, or for "auto" the first efficient one; a `Backend` is returned as it is.

    Raises ModelError for a backend that does not support the request.
    """
    if isinstance(name, Backend):
        return name
    supporting = [one.name for one in BACKENDS.values() if one.unsupported(request) is None]
    # The reference supports everything and comes last, so there always is one.
    if name == "auto":
        return next(BACKENDS[one] for one in supporting if not BACKENDS[one].inefficient(request))
    reason = BACKENDS[name].unsupported(request)
    if reason is not None:
        raise ModelError(
            f"config.model.attention_path='{name}': cannot compute pattern '{request.pattern}' because {reason}. "
            f"Use auto or: {', '.join(supporting)}."
        )
    return BACKENDS[name]
