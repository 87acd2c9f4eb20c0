"""Pallas flash attention on NVIDIA GPUs, through Triton: documents packed into long rows, without an array of pairs."""

import functools
import warnings

import jax.numpy as jnp

from models.attention.backend import Path, Request, refuse_features
from models.attention.kernels.blocks import lengthened, whole_blocks, without_blind
from models.attention.kernels.cudnn import on_gpu


@functools.cache
def kernel():
    """JAX's module of it, of which JAX 0.12 warns that it will go; None where it has gone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from jax.experimental.pallas.ops.gpu import attention
        except ImportError:
            return None
    return attention


def run(query, key, value, mask, bias, dropout, scale, interpret=False):
    """Attention of queries to keys at their own positions: [B, T, N, H]."""
    T, shared = query.shape[1], query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, shared, axis=2) for x in (key, value))
    arrays, mask = lengthened((query, key, value), mask)
    out = kernel().mha(*arrays, mask.query_segments, sm_scale=scale, causal=mask.causal, interpret=interpret)
    return without_blind(out, mask.replace(key_segments=None), out.shape[1])[:, :T]


def _refuses(request: Request) -> str | None:
    if reason := on_gpu(request):
        return reason
    if kernel() is None:
        return "this version of JAX has it no more"
    if request.T != request.S:
        return f"its queries are its keys' own positions, which {request.T} queries and {request.S} keys are not"
    if request.bias:
        return "it has no bias"
    return refuse_features(request, {"causal", "segments"})


def _wasteful(request: Request) -> bool:
    return whole_blocks(request.T) > 2 * request.T


PATH = Path("triton", run, _refuses, _wasteful)
