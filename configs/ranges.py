"""Ranges of the numbers in configs and flags, declared with their defaults: `steps=count(10_000)`.

No range contains infinities, NaN, or integers that do not fit the device's 32 bits, unless `below` raises that limit
for a number that only the host counts.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict


class Default(NamedTuple):
    """A default, and the range of its key."""

    default: Any
    range: "Range"


@dataclasses.dataclass(frozen=True)
class Range:
    """A set of allowed values; `rule` completes the sentence "it must be ..."."""

    rule: str
    contains: Callable[[Any], bool]
    below: int = 2**31  # exclusive limit of integers

    def __call__(self, default, below: int | None = None) -> Default:
        return Default(default, dataclasses.replace(self, below=below or self.below))

    def violation(self, value) -> str:
        """Return the rule that `value`, a number or a tuple of numbers, violates; empty if there is none."""
        numbers = value if isinstance(value, tuple) else (value,)
        # type(), since a bool is an int to isinstance
        if not all((type(number) is int or isinstance(number, float)) and math.isfinite(number) for number in numbers):
            return f"a finite number, {self.rule}" if numbers is not value else self.rule
        if any(type(number) is int and number >= self.below for number in numbers):
            return f"below {self.below:,}"
        return "" if self.contains(value) else self.rule


def _positive_integers(numbers) -> bool:
    return all(type(number) is int and number >= 1 for number in numbers)


count = Range("at least 1", lambda value: value >= 1)
counts = Range("whole numbers, each at least 1", _positive_integers)
non_negative = Range("at least 0", lambda value: value >= 0)
positive = Range("above 0", lambda value: value > 0)
positives = Range("numbers above 0", lambda values: all(value > 0 for value in values))
real = Range("any number", lambda value: True)
share = Range("from 0 to 1", lambda value: 0 <= value <= 1)
rate = Range("at least 0 and below 1", lambda value: 0 <= value < 1)
probability = Range("above 0 and at most 1", lambda value: 0 < value <= 1)
density = Range("from 0 to 0.95", lambda value: 0 <= value <= 0.95)  # leaves at least one token in 20 to read
span_length = Range("at least 0.1", lambda value: value >= 0.1)  # below, nearly all Poisson lengths would be 0
decay = Range("from 0 to 0.999999", lambda value: 0 <= value <= 0.999999)  # 1 - decay still has digits in float32
epsilon = Range("at least 1e-30", lambda value: value >= 1e-30)  # float32's smallest normal number is 1e-38
temperature = Range("above 0 and at most 1,000", lambda value: 0 < value <= 1000)
divisor = Range("from 0.1 to 100", lambda value: 0.1 <= value <= 100)
devices = Range("at least 1, or -1 for whatever is left", lambda value: value >= 1 or value == -1)
steps_or_epoch = Range("at least 0, or -1 for an epoch", lambda value: value >= -1)
indices = Range(
    "whole numbers from 0 on, in order, such as (0, 2, 4)",
    lambda values: all(type(value) is int and value >= 0 for value in values) and sorted({*values}) == [*values],
)
update_range = Range(
    "empty, or the first and the last update, such as (10, 12)",
    lambda value: not value or (len(value) == 2 and _positive_integers(value) and value[0] <= value[1]),
)
batch_ramp = Range(
    "empty, or the first size, the increment and the rows of the growth, such as (16, 16, 2_000_000)",
    lambda value: not value or (len(value) == 3 and _positive_integers(value)),
    below=2**42,
)
image_shape = Range(
    "empty, or rows, columns and 1 to 4 colours, such as (32, 32, 3)",
    lambda value: not value or (len(value) == 3 and _positive_integers(value) and value[2] <= 4),
)

# Conditions for the end of a beam search (pretrain/decoding); the first is the default.
STOPPING = ("never", "best", "full")


def section(declare: Callable[[], dict]) -> Callable[[], ConfigDict]:
    """Decorate a function that returns a nested dict of defaults to return their ConfigDict.

    Its attribute `ranges` maps dotted keys to the ranges of their numbers.
    """
    ranges = {}

    def defaults(tree: dict, prefix: str) -> dict:
        values = {}
        for name, value in tree.items():
            if isinstance(value, Default):
                ranges[prefix + name], value = value.range, value.default
            elif isinstance(value, dict):
                value = defaults(value, f"{prefix}{name}.")
            values[name] = value
        return values

    @functools.wraps(declare)
    def config() -> ConfigDict:
        return ConfigDict(defaults(declare(), ""))

    config()  # fills `ranges`
    config.ranges = ranges
    return config
