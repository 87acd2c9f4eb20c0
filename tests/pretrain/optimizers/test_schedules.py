"""Schedules against closed forms, and warnings of schedules that change or end."""

import math
import re
from fractions import Fraction

import jax
import numpy as np
import pytest

from configs import common
from pretrain.optimizers.schedules import schedule, warn_of_change, warn_of_end, warn_of_unused_keys


@pytest.mark.parametrize(
    ("options", "points"),
    [
        ({"kind": "constant"}, {0: 0.1, 4: 0.5, 9: 1.0, 50: 1.0, 99: 1.0}),
        ({"kind": "linear", "end": 0.0}, {4: 0.5, 10: 1.0, 55: 0.5, 100: 0.0, 200: 0.0}),
        ({"kind": "cosine", "end": 0.1}, {9: 1.0, 10: 1.0, 55: 0.55, 100: 0.1, 500: 0.1}),
        ({"kind": "cosine", "end": 0.0, "beneath_warmup": True}, {4: 0.5, 9: 1.0, 10: 0.97553, 50: 0.5, 100: 0.0}),
        ({"kind": "linear", "end": 0.0, "beneath_warmup": True}, {4: 0.5, 9: 1.0, 10: 0.9, 40: 0.6, 100: 0.0}),
        ({"kind": "rsqrt"}, {4: 0.5, 9: 1.0, 10: (10 / 11) ** 0.5, 39: 0.5, 89: 1 / 3}),
        ({"kind": "rsqrt", "warmup": 0, "hold": 10}, {0: 1.0, 9: 1.0, 10: 1.0, 40: 0.5, 90: 1 / 3}),  # T5
        ({"kind": "rsqrt", "hold": 5}, {4: 0.5, 9: 1.0, 14: 1.0, 15: (15 / 16) ** 0.5, 59: 0.5}),
        ({"kind": "linear", "hold": 30, "end": 0.0}, {4: 0.5, 10: 1.0, 40: 1.0, 70: 0.5, 100: 0.0}),
        ({"kind": "linear", "end": 0.5, "decay_steps": 50}, {30: 0.75, 50: 0.5, 99: 0.5}),
        ({"kind": "wsd", "end": 0.0}, {4: 0.5, 9: 1.0, 80: 1.0, 81: 1 - 20**-0.5, 85: 0.5, 100: 0.0, 150: 0.0}),
        ({"kind": "wsd", "end": 0.1, "cooldown_shape": "linear"}, {10: 1.0, 80: 1.0, 90: 0.55, 100: 0.1}),
        ({"kind": "wsd", "end": 0.1, "cooldown": 0.5, "decay_steps": 40}, {20: 1.0, 25: 0.55, 40: 0.1, 99: 0.1}),
    ],
)
def test_schedules(options, points):
    config = common.base()
    config.schedule.update({"peak": 1.0, "warmup": 10, **options})
    rate = schedule(config.schedule, 100)
    for step, value in points.items():
        np.testing.assert_allclose(rate(step), value, rtol=1e-5, err_msg=str(step))


@pytest.mark.parametrize(("steps", "cut_frac", "ratio"), [(100, 0.1, 32.0), (200, 0.29, 8.0), (1130, 0.1, 32.0)])
def test_slanted_triangle_is_the_published_one(steps, cut_frac, ratio):
    """Howard and Ruder 2018, equation 3, with the same names."""
    options = common.base().schedule.to_dict() | {"kind": "slanted", "peak": 0.01, "warmup": 3, "end": 0.5}
    rates = schedule(options | {"cut_frac": cut_frac, "ratio": ratio}, steps)(np.arange(steps + 1))
    cut = math.floor(Fraction(str(cut_frac)) * steps)
    t = np.arange(steps + 1)
    p = np.where(t < cut, t / cut, 1 - (t - cut) / (cut * (1 / cut_frac - 1)))
    np.testing.assert_allclose(rates, 0.01 * (1 + p * (ratio - 1)) / ratio, rtol=1e-5)


@pytest.mark.parametrize("options", [{"kind": "slanted"}, {"kind": "wsd", "warmup": 0}])
@pytest.mark.parametrize("steps", [1, 3, 19, 105])
def test_short_schedules_stay_between_end_and_peak(options, steps):
    """19 steps cut at 1: the published formula would become negative."""
    options = common.base().schedule.to_dict() | {"peak": 1.0, "end": 1 / 32} | options
    rates = np.asarray(schedule(options, steps)(np.arange(steps + 1)))
    assert rates.min() >= 1 / 32 - 1e-6 and rates.max() == pytest.approx(1.0)


@pytest.mark.parametrize(("kind", "step"), [("linear", 4), ("cosine", 50)])
def test_schedule_change_warns(kind, step):
    """During warm-up too, where both schedules rise alike."""
    before, now = common.base(), common.base()
    for config, steps in ((before, 1000), (now, 2000)):
        config.schedule.update(kind=kind, peak=1.0, warmup=10, end=0.0, decay_steps=0)
        config.train.steps = steps
    warning = warn_of_change(before, now, step)
    number, new, old = re.search(r"step (\d+) has the learning rate (\S+) instead of (\S+) ", warning).groups()
    for config, rate in ((before, old), (now, new)):
        exact = schedule(config.schedule, config.train.steps)(int(number) - 1)
        assert float(rate) == pytest.approx(float(exact), abs=0.005)
    assert float(new) > 1.3 * float(old)
    assert warn_of_change(before, now, now.train.steps) is None  # no update is left
    now.schedule.decay_steps = 1000
    assert warn_of_change(before, now, step) is None
    for config in (before, now):
        config.schedule.update(kind="rsqrt", decay_steps=0)
    assert warn_of_change(before, now, step) is None


def test_schedule_end_warns():
    config = common.base()
    config.schedule.update(kind="cosine", peak=1.0, warmup=10, end=0.0, decay_steps=100)
    config.train.steps = 300
    assert "from step 151" in warn_of_end(config, 150)
    assert "from step 101" in warn_of_end(config, 50)
    assert warn_of_end(config, 300) is None
    config.schedule.end = 0.1
    assert warn_of_end(config, 100) is None
    config.schedule.update(end=0.0, decay_steps=0)
    assert warn_of_end(config, 299) is None


def test_rate_is_never_negative():
    options = common.base().schedule.to_dict() | {"kind": "linear", "peak": 3e-3, "warmup": 5, "end": 0.0}
    for steps in range(6, 60, 9):
        assert 0 <= jax.jit(schedule(options | {"decay_steps": 0}, steps))(steps) < 1e-9


def test_unused_schedule_keys_warn():
    config = common.base()
    config.schedule.update(kind="constant", hold=5, beneath_warmup=True)
    warning = warn_of_unused_keys(config)
    assert "config.schedule.hold=5" in warning and "config.schedule.beneath_warmup=True" in warning
    config.schedule.update(kind="rsqrt", beneath_warmup=False)
    assert warn_of_unused_keys(config) is None
    config.schedule.update(ratio=8.0)
    assert "config.schedule.ratio=8.0" in warn_of_unused_keys(config)
    config.schedule.update(kind="slanted", hold=0)
    assert warn_of_unused_keys(config) is None
