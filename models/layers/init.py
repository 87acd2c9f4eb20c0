"""How parameters start.

Each carries the logical names of its axes, which a table outside maps to a mesh, and its role (`parameter.py`): a
matrix's first `inputs` axes are its inputs, and a vector, such as a bias, has `inputs` = 0.
"""

import math
from collections.abc import Callable, Mapping

import jax
from flax import linen as nn

from models.layers.parameter import declared


def normal(std: float, *names: str | None, inputs: int = 1, mean: float = 0.0):
    """An initialiser N(mean, std) whose parameter's axes carry `names`."""
    draw = nn.initializers.normal(std)
    return declared((lambda *args: mean + draw(*args)) if mean else draw, names, inputs)


def truncated_normal(std: float, *names: str | None, inputs: int = 1):
    """An initialiser N(0, std) drawn anew beyond two standard deviations, as in BERT; axes carry `names`."""
    return declared(nn.initializers.truncated_normal(std), names, inputs)


def uniform(std: float, *names: str | None, inputs: int = 1):
    """An initialiser, uniform around 0 with that standard deviation; the parameter's axes carry `names`."""
    bound = std * math.sqrt(3)

    def draw(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return declared(draw, names, inputs)


# By configs' names: of matrices, and of tables.
INITIALISERS: Mapping[str, Callable] = {"truncated": truncated_normal, "normal": normal, "fan_in": uniform}
TABLES: Mapping[str, Callable] = INITIALISERS | {"fan_in": normal}


def constant(value: float, *names: str | None):
    """An initialiser that fills a vector with `value`; the parameter's axes carry `names`."""
    return declared(nn.initializers.constant(value), names, inputs=0)


def residual_std(std: float, layers: int) -> float:
    """Standard deviation of a residual branch's last matrix: std / sqrt(2 L) (Radford et al. 2019, section 2.3)."""
    return std / math.sqrt(2 * layers)
