"""Ranges of a config's numbers: every number has one, and its default is inside."""

import math

import pytest

from configs import common, ranges
from pretrain.config import flat


@pytest.mark.parametrize("declare", [common.base, *common.MODELS.values(), *common.OBJECTIVES.values()])
def test_ranges_contain_defaults(declare):
    numbers = {key: value for key, value in flat(declare()).items() if type(value) in (int, float)}
    if declare is common.base:  # whose models have tables of their own
        numbers = {key: value for key, value in numbers.items() if not key.startswith(("model.", "objective."))}
    assert not numbers.keys() - declare.ranges.keys()
    assert not {key: value for key, value in numbers.items() if declare.ranges[key].violation(value)}


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (ranges.count, (1, 2**31 - 1), (0, -1, 2**31, 10**30)),
        (ranges.non_negative, (0, 0.0, 1e30), (-1, -1e-9)),
        (ranges.positive, (1e-9, 1), (0.0, -1.0)),
        (ranges.share, (0.0, 1.0), (-0.1, 1.1)),
        (ranges.rate, (0.0, 0.999), (-0.1, 1.0)),
        (ranges.decay, (0.0, 0.999999), (-0.1, 0.9999999, 1.0)),
        (ranges.epsilon, (1e-30, 1e-8, 1.0), (0.0, 1e-31, -1.0)),
        (ranges.density, (0.0, 0.95), (-0.1, 0.951, 0.9999999999)),
        (ranges.span_length, (0.1, 1e30), (0.0, 0.09)),
        (ranges.devices, (-1, 1, 512), (0, -2)),
        (ranges.counts, ((), (1, 2)), ((0,), (1.5,), (1, "a"))),
        (ranges.positives, ((), (0.5, 2)), ((0,), (1, -1), ("a",))),
        (ranges.update_range, ((), (3, 3), (1, 20)), ((5,), (50, 20), (0, 1), (1.0, 2.0), (1, 2, 3))),
        (ranges.image_shape, ((), (32, 32, 3)), ((32, 32), (4, 6, 5), (4, 0, 3))),
        (common.spans.ranges["mean_span"], (1.0,), (0.9, 1e-19)),
    ],
    ids=lambda value: "",
)
def test_range_bounds(bounds, inside, outside):
    assert not any(map(bounds.violation, inside))
    assert all(map(bounds.violation, outside))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "3", None, (math.nan,)])
def test_range_excludes_non_numbers(value):
    assert all(bounds.violation(value) for bounds in vars(ranges).values() if isinstance(bounds, ranges.Range))
