"""cuDNN's flash attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

It knows causality. Any other mask, and a bias, is an array to it: a mask's has T * S numbers of two bytes for a row of
the batch, which the heads share. With a bias too it would have the size of the scores, and is refused.
"""

import jax

from models.attention.backend import Path, Request
from models.attention.biases import ByBucket, Stored, whole
from models.attention.kernels.blocks import without_blind
from models.attention.patterns import Dense

LARGEST = 2048 * 2048  # pairs for which `auto` has such an array made


def run(query, key, value, mask, bias, dropout, scale, implementation="cudnn"):
    """Attention of any mask: [B, T, N, H]."""
    T, S = query.shape[1], key.shape[1]
    known = _knows(mask.features(), T, S)
    if bias is not None:
        bias = whole(bias, mask, T, S).astype(query.dtype)
    out = jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        mask=None if known else mask.tile(0, T, 0, S),
        is_causal=mask.causal and known,
        scale=scale,
        implementation=implementation,
    )
    return out if known else without_blind(out, mask, S)


def _knows(features: frozenset[str], T: int, S: int) -> bool:
    """Whether a mask is one of cuDNN's own, which needs no array."""
    return not features or (features == {"causal"} and T == S)


def on_gpu(request: Request) -> str | None:
    """What the kernels of NVIDIA GPUs refuse."""
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
        return "it draws no dropout by the row, as the other paths do"
    return None


def _refuses(request: Request) -> str | None:
    if reason := on_gpu(request):
        return reason
    known = _knows(request.features, request.T, request.S)
    if request.bias and not (known and isinstance(request.bias, Stored | ByBucket)):
        return "bias and mask together would be an array of every row, head and pair"
    if (request.bias or not known) and (request.T % 2 or request.S % 2):
        return f"arrays of masks and biases have even sizes, and there are {request.T} queries and {request.S} keys"
    return None


def _wasteful(request: Request) -> bool:
    """Arrays that need not be are better not made of more than 2048 x 2048 pairs."""
    array = request.bias is not None or not _knows(request.features, request.T, request.S)
    return array and not (request.bias and request.bias.stored) and request.T * request.S > LARGEST


PATH = Path("cudnn", run, _refuses, _wasteful)
