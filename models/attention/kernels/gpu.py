"""Attention kernels for NVIDIA GPUs: cuDNN's, and Pallas flash attention through Triton.

cuDNN knows causality. Any other mask, and a bias, is an array to it: a mask has T * S numbers of two bytes for a row of
the batch, shared by the heads; mask and bias together would have the size of the scores, and are refused. Triton's
kernel has segments, so packed documents in long rows need no array of pairs.
"""

import functools
import warnings

import jax
import jax.numpy as jnp

from models.attention.backend import Backend, Request, missing_features
from models.attention.biases import ByBucket, Stored, full_bias
from models.attention.kernels import pad_to_blocks, round_up, zero_blind_queries
from models.attention.patterns import Dense

MAX_MASK = 2048 * 2048  # pairs up to which `auto` lets cuDNN have a mask as an array: 8 MB a row


def run_cudnn(query, key, value, mask, bias, dropout, scale, implementation="cudnn"):
    """Attention under any mask: [B, T, N, H]."""
    T, S = query.shape[1], key.shape[1]
    native = _is_native(mask.features(), T, S)
    if bias is not None:
        bias = full_bias(bias, mask, T, S).astype(query.dtype)
    out = jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        mask=None if native else mask.tile(0, T, 0, S),
        is_causal=mask.causal and native,
        scale=scale,
        implementation=implementation,
    )
    return out if native else zero_blind_queries(out, mask, S)


def _is_native(features: frozenset[str], T: int, S: int) -> bool:
    """Whether cuDNN knows the mask, so that it needs no array."""
    return not features or (features == {"causal"} and T == S)


def _unsupported_on_gpu(request: Request) -> str | None:
    if request.platform != "gpu":
        return f"it runs on GPUs and the platform is {request.platform}"
    if request.dtype.name not in ("bfloat16", "float16"):
        return f"it computes in bfloat16 or float16, not {request.dtype.name}"
    if request.value_size != request.head_size:
        return "its values have the size of its keys"
    if request.head_size > 128 or request.head_size % 8:
        return f"head size {request.head_size} is not a multiple of 8 up to 128"
    if not isinstance(request.pattern, Dense):
        return "it is dense"
    if request.dropout:
        return "it has no dropout by row of the batch"
    return None


def _unsupported_by_cudnn(request: Request) -> str | None:
    if reason := _unsupported_on_gpu(request):
        return reason
    native = _is_native(request.features, request.T, request.S)
    if request.bias and not (native and isinstance(request.bias, Stored | ByBucket)):
        return "bias and mask together would be an array of every row, head and pair"
    if (request.bias or not native) and (request.T % 2 or request.S % 2):
        return f"masks and biases have even sizes, not {request.T} queries and {request.S} keys"
    return None


def _inefficient_with_cudnn(request: Request) -> bool:
    array = request.bias is not None or not _is_native(request.features, request.T, request.S)
    return array and not (request.bias and request.bias.stored) and request.T * request.S > MAX_MASK


CUDNN = Backend("cudnn", run_cudnn, _unsupported_by_cudnn, _inefficient_with_cudnn)


@functools.cache
def triton_kernel():
    """JAX's module of the kernel, deprecated in 0.12; None in versions without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from jax.experimental.pallas.ops.gpu import attention
        except ImportError:
            return None
    return attention


def run_triton(query, key, value, mask, bias, dropout, scale, interpret=False):
    """Attention of queries to keys at the same positions: [B, T, N, H]."""
    T, shared = query.shape[1], query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, shared, axis=2) for x in (key, value))
    arrays, mask = pad_to_blocks((query, key, value), mask)
    out = triton_kernel().mha(*arrays, mask.query_segments, sm_scale=scale, causal=mask.causal, interpret=interpret)
    return zero_blind_queries(out, mask.replace(key_segments=None), out.shape[1])[:, :T]


def _unsupported_by_triton(request: Request) -> str | None:
    if reason := _unsupported_on_gpu(request):
        return reason
    if triton_kernel() is None:
        return "this version of JAX does not have it"
    if request.T != request.S:
        return f"it needs as many queries as keys, not {request.T} and {request.S}"
    if request.bias:
        return "it has no bias"
    return missing_features(request, {"causal", "segments"})


def _inefficient_with_triton(request: Request) -> bool:
    return round_up(request.T) > 2 * request.T  # more than half of each block would be padding


TRITON = Backend("triton", run_triton, _unsupported_by_triton, _inefficient_with_triton)
