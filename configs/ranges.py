"""The ranges of numbers in configs and flags, declared beside their defaults: `steps=count(10_000)`.

Infinity and what is not a number are in no range, and neither are whole numbers that the device's 32 bits do not hold
(`below` moves that end, for what only the host counts).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict


class Declared(NamedTuple):
    """A default, and the range that every value of its key keeps."""

    default: Any
    range: "Range"


@dataclasses.dataclass(frozen=True)
class Range:
    """The values of which `holds` is true; `rule` ends a sentence that begins "it must be"."""

    rule: str
    holds: Callable[[Any], bool]
    below: int = 2**31  # end of whole numbers

    def __call__(self, default, below: int | None = None) -> Declared:
        return Declared(default, dataclasses.replace(self, below=below or self.below))

    def broken_by(self, value) -> str:
        """The rule that `value`, a number or a tuple of numbers, breaks; empty if it keeps all of them."""
        numbers = value if isinstance(value, tuple) else (value,)
        if not all((type(number) is int or isinstance(number, float)) and math.isfinite(number) for number in numbers):
            return f"a finite number, {self.rule}" if numbers is not value else self.rule
        if any(type(number) is int and number >= self.below for number in numbers):
            return f"below {self.below:,}"
        return "" if self.holds(value) else self.rule


def _whole(numbers) -> bool:
    return all(type(number) is int and number >= 1 for number in numbers)


places = Range(
    "whole numbers from 0 on, in order, such as (0, 2, 4)",
    lambda values: all(type(value) is int and value >= 0 for value in values) and sorted({*values}) == [*values],
)
count = Range("at least 1", lambda value: value >= 1)
counts = Range("whole numbers, each at least 1", _whole)
non_negative = Range("at least 0", lambda value: value >= 0)
positive = Range("above 0", lambda value: value > 0)
positives = Range("numbers above 0", lambda values: all(value > 0 for value in values))
share = Range("from 0 to 1", lambda value: 0 <= value <= 1)
rate = Range("at least 0 and below 1", lambda value: 0 <= value < 1)
decay = Range("from 0 to 0.999999", lambda value: 0 <= value <= 0.999999)  # float32 has what is left to 1
little = Range("at least 1e-30", lambda value: value >= 1e-30)  # what float32 holds, with room below
probability = Range("above 0 and at most 1", lambda value: 0 < value <= 1)
missing = Range("from 0 to 0.95", lambda value: 0 <= value <= 0.95)  # one token in 20 at least is left to be read
span = Range("at least 0.1", lambda value: value >= 0.1)  # tokens or words; of shorter ones nearly all would be empty
temperature = Range("above 0 and at most 1,000", lambda value: 0 < value <= 1000)
divisor = Range("from 0.1 to 100", lambda value: 0.1 <= value <= 100)
real = Range("any number", lambda value: True)
devices = Range("at least 1, or -1 for whatever is left", lambda value: value >= 1 or value == -1)
updates = Range(
    "empty, or the first and the last update, such as (10, 12)",
    lambda value: not value or (len(value) == 2 and _whole(value) and value[0] <= value[1]),
)
shape = Range(
    "empty, or rows, columns and 1 to 4 colours, such as (32, 32, 3)",
    lambda value: not value or (len(value) == 3 and _whole(value) and value[2] <= 4),
)


def section(declare: Callable[[], dict]) -> Callable[[], ConfigDict]:
    """Makes a function that returns a nested dict of declarations one that returns the ConfigDict of their defaults.

    Its attribute `ranges` has each number's range, by dotted key.
    """
    ranges = {}

    def defaults(tree: dict, prefix: str) -> dict:
        values = {}
        for name, value in tree.items():
            if isinstance(value, Declared):
                ranges[prefix + name], value = value.range, value.default
            elif isinstance(value, dict):
                value = defaults(value, f"{prefix}{name}.")
            values[name] = value
        return values

    @functools.wraps(declare)
    def config() -> ConfigDict:
        return ConfigDict(defaults(declare(), ""))

    config()
    config.ranges = ranges
    return config
