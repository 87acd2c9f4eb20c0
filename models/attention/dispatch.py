"""Selection of a backend: the one that is named, or for "auto" the first that supports the request.

A named backend that does not support a request is an error that names those that do; nothing falls back silently.
"""

import jax
import numpy as np

from models.attention import backend as backends
from models.attention import chunked, sparse, xla
from models.attention.backend import Backend, Request
from models.attention.biases import as_bias
from models.attention.kernels import gpu, splash
from models.attention.masks import Mask
from models.attention.patterns import per_head
from models.errors import ModelError

# In the order in which `auto` tries them.
BACKENDS: dict[str, Backend] = {
    one.name: one
    for one in (splash.BACKEND, gpu.CUDNN, gpu.TRITON, sparse.BACKEND, xla.BACKEND, chunked.BACKEND, backends.REFERENCE)
}


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

    Raises ModelError for an unknown name and for a backend that does not support the request.
    """
    if isinstance(name, Backend):
        return name
    supporting = [one.name for one in BACKENDS.values() if one.unsupported(request) is None]
    if name == "auto":
        return next(BACKENDS[one] for one in supporting if not BACKENDS[one].inefficient(request))
    if name not in BACKENDS:
        raise ModelError(f"config.model.attention_path='{name}': unknown. Use one of: auto, {', '.join(BACKENDS)}.")
    reason = BACKENDS[name].unsupported(request)
    if reason is not None:
        raise ModelError(
            f"config.model.attention_path='{name}': cannot compute pattern '{request.pattern}' because {reason}. "
            f"Use auto or: {', '.join(supporting)}."
        )
    return BACKENDS[name]
