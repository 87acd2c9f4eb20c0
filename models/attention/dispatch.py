"""Which path computes an attention: the one that is named, or for "auto" the first that serves.

`reference` is the oracle. Each path says what it supports (`Path.refuses`); asking one for what it does not support is
an error that names those that serve. Nothing falls back silently.
"""

import jax
import numpy as np

from models.attention import chunked, reference, sparse, xla
from models.attention.backend import Path, Request
from models.attention.biases import described
from models.attention.kernels import cudnn, splash, triton
from models.attention.masks import Mask
from models.attention.patterns import per_head
from models.errors import ModelError

# `auto` takes the first that serves.
PATHS: dict[str, Path] = {
    module.PATH.name: module.PATH for module in (splash, cudnn, triton, sparse, xla, chunked, reference)
}


def chosen_path(query, key, value, mask: Mask, *, bias=None, dropout_rate=0.0, path="auto", platform=None):
    """Names of the paths that `attend` takes for arrays (or shapes) like these: one for each pattern of the heads."""
    heads = query.shape[2]
    return tuple(
        resolve(
            path, request_of(query, key, value, mask.replace(pattern=one), described(bias), dropout_rate > 0, platform)
        ).name
        for one in dict.fromkeys(per_head(mask.pattern, heads))
    )


def request_of(query, key, value, mask: Mask, bias, dropout: bool, platform=None) -> Request:
    """The static facts of a call with one pattern; on the platform that is compiled for, unless one is named."""
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
    """What the devices of the mesh in scope are, which may be hardware that is compiled for from elsewhere."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def resolve(name: str | Path, request: Request) -> Path:
    """The path called `name`, or for "auto" the first that serves; a path that is none of PATHS is taken as it is.

    Errors: ModelError for an unknown name, and for a path that refuses the request.
    """
    if isinstance(name, Path):
        return name
    serving = [path.name for path in PATHS.values() if path.refuses(request) is None]
    if name == "auto":
        return next(PATHS[one] for one in serving if not PATHS[one].wasteful(request))
    if name not in PATHS:
        raise ModelError(f"attention path '{name}' is unknown; choose from: auto, {', '.join(PATHS)}")
    reason = PATHS[name].refuses(request)
    if reason is not None:
        raise ModelError(
            f"attention path '{name}' cannot serve pattern '{request.pattern}' here because {reason}; "
            f"use auto or one of: {', '.join(serving)}"
        )
    return PATHS[name]
