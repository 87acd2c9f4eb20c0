"""Pallas splash attention on TPUs: fully masked blocks are not computed."""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention

from models.attention.backend import Backend, Request, missing_features
from models.attention.kernels import LANES, pad_to_blocks, round_up, zero_blind_queries
from models.attention.patterns import Dense, Local

MAX_BLOCK = 512  # rows; larger blocks skip less under a mask and need more on-chip memory
HEAD_MULTIPLE = 64  # half the lanes: head sizes are padded to a multiple of it


def run(query, key, value, mask, bias, dropout, scale, interpret=False):
    """Attention under segments and padded keys, causal or not, dense or local: [B, T, N, H]."""
    # Rows and head features are padded with zeros, which add nothing to products.
    T, H = query.shape[1], value.shape[3]
    mask = _valid_as_segments(mask, *query.shape[:2], key.shape[1])
    (query, key, value), mask = pad_to_blocks((query * scale, key, value), mask)
    query, key, value = (jnp.swapaxes(_pad_heads(x), 1, 2) for x in (query, key, value))
    rows, columns = query.shape[2], key.shape[2]
    masks = splash_attention.MultiHeadMask([_mask(mask, rows, columns)] * query.shape[1])
    sizes = dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), _block(rows))
    keys = ("block_kv", "block_kv_compute", "block_kv_dkv", "block_kv_dkv_compute", "block_kv_dq")
    sizes |= dict.fromkeys(keys, _block(columns))
    kernel = splash_attention.make_splash_mha(
        masks,
        block_sizes=splash_attention.BlockSizes(**sizes),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    segments = ()
    if mask.query_segments is not None:
        key_segments = mask.query_segments if mask.key_segments is None else mask.key_segments
        segments = (splash_attention.SegmentIds(mask.query_segments, key_segments),)
    out = jnp.swapaxes(jax.vmap(kernel)(query, key, value, *segments), 1, 2)
    # For the kernel, padding is one more segment whose queries see each other.
    return (zero_blind_queries(out, mask, columns) if segments else out)[:, :T, :, :H]


def _valid_as_segments(mask, B, T, S):
    """The mask with `key_valid` expressed as segments: invalid keys get segment 0, which no query sees."""
    if mask.key_valid is None:
        return mask
    query, key = mask.query_segments, mask.key_segments
    if query is None:
        query, key = jnp.ones((B, T), jnp.int32), jnp.ones((B, S), jnp.int32)
    key = jnp.where(mask.key_valid, query if key is None else key, 0)
    return mask.replace(query_segments=query, key_segments=key, key_valid=None)


def _pad_heads(x):
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, -x.shape[3] % HEAD_MULTIPLE)))


def _mask(mask, T, S):
    match mask.pattern:
        case Local(window):
            after = 0 if mask.causal else window - 1
            return splash_attention.LocalMask((T, S), (window - 1, after), offset=mask.memory)
        case Dense() if mask.causal:
            return splash_attention.CausalMask((T, S), offset=mask.memory)
        case Dense():
            return splash_attention.FullMask((T, S))


def _block(length):
    return next(size for size in (MAX_BLOCK, 256, LANES) if length % size == 0)


def _unsupported(request: Request) -> str | None:
    if request.platform != "tpu":
        return f"it runs on TPUs and the platform is {request.platform}"
    if not isinstance(request.pattern, Dense | Local):
        return "it has dense and local patterns only"
    if request.bias:
        return "it has no bias"
    if request.dropout:
        return "it has no dropout"
    return missing_features(request, {"causal", "memory", "segments", "key_segments", "key_valid"})


def _inefficient(request: Request) -> bool:
    # At least half of the products would be with padding.
    sizes = request.head_size, request.value_size
    padded = round_up(request.T) * round_up(request.S) * sum(size + -size % HEAD_MULTIPLE for size in sizes)
    return padded >= 2 * request.T * request.S * sum(sizes)


BACKEND = Backend("splash", run, _unsupported, _inefficient)
