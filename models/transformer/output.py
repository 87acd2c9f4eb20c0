"""What a model returns."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import struct


@struct.dataclass
class Output:
    """Hidden states [B, T, D], and what was carried in, gone on: {name of the branch that carries it: what}."""

    hidden: jax.Array
    carried: Mapping[str, Any]
