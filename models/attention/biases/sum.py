"""Several biases, added."""

import functools
import operator
from collections.abc import Callable

import jax
from flax import struct


@struct.dataclass
class Sum:
    """The sum of its parts."""

    parts: tuple

    @property
    def stored(self) -> bool:
        return any(part.stored for part in self.parts)

    @property
    def products(self) -> int:
        return sum(part.products for part in self.parts)

    def check(self, batch, heads, T, S):
        for part in self.parts:
            part.check(batch, heads, T, S)

    def map_queries(self, function: Callable) -> "Sum":
        return Sum(tuple(part.map_queries(function) for part in self.parts))

    def tile(self, mask, start, rows: int, first: int, keys: int) -> jax.Array:
        return functools.reduce(operator.add, (part.tile(mask, start, rows, first, keys) for part in self.parts))

    def pairs(self, position, ahead) -> jax.Array:
        return functools.reduce(operator.add, (part.pairs(position, ahead) for part in self.parts))
