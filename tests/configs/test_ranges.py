"""The ranges of a config's numbers, and that every number has one."""

import math

import pytest

from configs import common, ranges
from pretrain.config import flat


@pytest.mark.parametrize("declare", [common.base, *common.MODELS.values()], ids=lambda declare: declare.__name__)
def test_every_number_has_a_range_that_its_default_keeps(declare):
    numbers = {key: value for key, value in flat(declare()).items() if type(value) in (int, float)}
    if declare is common.base:
        numbers = {key: value for key, value in numbers.items() if not key.startswith("model.")}
    assert numbers and not numbers.keys() - declare.ranges.keys()
    assert not {key: value for key, value in numbers.items() if declare.ranges[key].violation(value)}


@pytest.mark.parametrize(
    ("kept", "values", "broken"),
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
    ],
    ids=lambda value: "",
)
def test_what_is_in_a_range(kept, values, broken):
    assert not any(map(kept.violation, values))
    assert all(map(kept.violation, broken))


@pytest.mark.parametrize("kept", [value for value in vars(ranges).values() if isinstance(value, ranges.Range)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "3", None, (math.nan,)])
def test_what_is_no_finite_number_is_in_no_range(kept, value):
    assert kept.violation(value)


def test_spans_have_a_token_at_least():
    kept = common.spans.ranges["mean_span"]
    assert not kept.violation(1.0) and kept.violation(0.9) and kept.violation(1e-19)


def test_the_end_of_whole_numbers_can_be_moved():
    """Tokens and bytes are counted by the host, whose whole numbers are longer than the device's."""
    assert not common.base.ranges["data.cap"].violation(10**12)
    assert common.base.ranges["data.cap"].violation(2**63) == "below 9,223,372,036,854,775,808"
    assert common.base.ranges["seed"].violation(2**32) == "below 4,294,967,296"
