"""What a way of computing attention is: a function, and the reasons for which it refuses a request."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from models.attention.biases import Bias
from models.attention.dropout import Dropout
from models.attention.masks import Mask
from models.attention.patterns import Pattern


@dataclass(frozen=True)
class Request:
    """The static facts of one call, on which a path decides whether it serves."""

    T: int
    S: int
    heads: int
    kv_heads: int
    head_size: int  # of queries and keys
    value_size: int
    dtype: np.dtype
    pattern: Pattern
    features: frozenset[str]
    bias: Bias | None  # whether and how it is stored; its arrays may be shapes
    dropout: bool
    platform: str


@dataclass(frozen=True)
class Path:
    """One implementation.

    `run(query, key, value, mask, bias, dropout, scale)` returns [B, T, N, H]; `refuses(request)` returns None or the
    reason, worded to follow "because". `wasteful(request)` makes `auto` pass it over for one that serves better.
    """

    name: str
    run: Callable[[jax.Array, jax.Array, jax.Array, Mask, Bias | None, Dropout | None, float], jax.Array]
    refuses: Callable[[Request], str | None]
    wasteful: Callable[[Request], bool] = lambda request: False


def refuse_features(request: Request, supported: set[str]) -> str | None:
    """The reason of a path that handles only `supported` mask features."""
    missing = sorted(request.features - supported)
    return f"it has no {' and no '.join(missing)}" if missing else None
