"""Kernels that libraries keep: cuDNN's flash attention on NVIDIA GPUs, Pallas splash attention on TPUs."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention

from models.attention.biases import whole
from models.attention.path import Path, Request, refuse_features
from models.attention.patterns import Dense, Local


def _cudnn(query, key, value, mask, bias, dropout, scale):
    bias = whole(bias, mask, query.shape[1], key.shape[1])
    return jax.nn.dot_product_attention(
        query, key, value, bias=bias, is_causal=mask.causal, scale=scale, implementation="cudnn"
    )


def _cudnn_refuses(request: Request) -> str | None:
    if request.platform != "gpu":
        return f"it runs on GPUs and the platform is {request.platform}"
    if request.dtype.name not in ("bfloat16", "float16"):
        return f"it computes in bfloat16 or float16, not {request.dtype.name}"
    if request.value_size != request.head_size:
        return "its values are of the size of its keys"
    if request.head_size > 128 or request.head_size % 8:
        return f"a head size of {request.head_size} is not a multiple of 8 up to 128"
    if not isinstance(request.pattern, Dense):
        return "it is dense"
    if request.dropout:
        return "it has no dropout"
    if "causal" in request.features and request.T != request.S:
        return "its causal mask needs as many queries as keys"
    return refuse_features(request, {"causal"})


LANES = 128  # of a TPU's vector unit: splash attention's blocks are multiples of it
LARGEST_BLOCK = 512


def _splash(query, key, value, mask, bias, dropout, scale, interpret=False):
    T, S, heads = query.shape[1], key.shape[1], query.shape[2]
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query * scale, key, value))
    masks = splash_attention.MultiHeadMask([_splash_mask(mask, T, S)] * heads)
    rows, columns = _block(T), _block(S)
    sizes = dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), rows)
    sizes |= dict.fromkeys(("block_kv", "block_kv_compute", "block_kv_dkv", "block_kv_dkv_compute"), columns)
    sizes |= {"block_kv_dq": columns}
    kernel = splash_attention.make_splash_mha(
        masks,
        block_sizes=splash_attention.BlockSizes(**sizes),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    if mask.query_segments is None:
        return jnp.swapaxes(jax.vmap(kernel)(query, key, value), 1, 2)
    key_segments = mask.query_segments if mask.key_segments is None else mask.key_segments
    segments = splash_attention.SegmentIds(mask.query_segments, key_segments)
    out = jnp.swapaxes(jax.vmap(kernel)(query, key, value, segments), 1, 2)
    # To the kernel padding is one more segment, whose queries see each other; here they see nothing.
    return jnp.where((mask.query_segments != 0)[:, :, None, None], out, 0)


def _splash_mask(mask, T, S):
    match mask.pattern:
        case Local(window):
            after = 0 if mask.causal else window - 1
            return splash_attention.LocalMask((T, S), (window - 1, after), offset=mask.memory)
        case Dense() if mask.causal:
            return splash_attention.CausalMask((T, S), offset=mask.memory)
        case Dense():
            return splash_attention.FullMask((T, S))


def _block(length):
    return next(size for size in (LARGEST_BLOCK, 256, LANES) if length % size == 0)


def _splash_refuses(request: Request) -> str | None:
    if request.platform != "tpu":
        return f"it runs on TPUs and the platform is {request.platform}"
    if not isinstance(request.pattern, Dense | Local):
        return "it knows dense and local patterns alone"
    if request.T % LANES or request.S % LANES:
        return f"its blocks are multiples of {LANES}, which {request.T} queries and {request.S} keys are not"
    if request.head_size % 64 or request.value_size % 64:
        return f"a head size of {request.head_size} is not a multiple of 64"
    if request.bias:
        return "it has no bias"
    if request.dropout:
        return "it has no dropout"
    return refuse_features(request, {"causal", "memory", "segments"})


CUDNN = Path("cudnn", _cudnn, _cudnn_refuses)
SPLASH = Path("splash", _splash, _splash_refuses)
interpreted_splash = functools.partial(_splash, interpret=True)  # the kernel's arithmetic on any platform, slowly
