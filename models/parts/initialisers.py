"""How parameters start; each carries the logical names of its axes, which a table outside maps to a mesh."""

import math

import jax
from flax import linen as nn


def normal(std: float, *names: str | None):
    """An initialiser N(0, std) whose parameter's axes carry `names`."""
    return nn.with_logical_partitioning(nn.initializers.normal(std), names)


def truncated_normal(std: float, *names: str | None):
    """An initialiser N(0, std) drawn anew beyond two standard deviations, as in BERT; axes carry `names`."""
    return nn.with_logical_partitioning(nn.initializers.truncated_normal(std), names)


def uniform(std: float, *names: str | None):
    """An initialiser, uniform around 0 with that standard deviation; the parameter's axes carry `names`."""
    bound = std * math.sqrt(3)

    def draw(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return nn.with_logical_partitioning(draw, names)


def constant(value: float, *names: str | None):
    """An initialiser that fills in `value`; the parameter's axes carry `names`."""
    return nn.with_logical_partitioning(nn.initializers.constant(value), names)


def residual_std(std: float, layers: int) -> float:
    """Standard deviation of a residual branch's last matrix: std / sqrt(2 L) (Radford et al. 2019, section 2.3)."""
    return std / math.sqrt(2 * layers)
