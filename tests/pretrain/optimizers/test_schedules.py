"""Schedules against closed forms, and what is said of one that a longer run moves."""

import re

import jax
import numpy as np
import pytest

from configs import common
from pretrain.errors import UserError
from pretrain.optimizers.schedules import ended, idle, moved, schedule


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
    ],
)
def test_schedules(options, points):
    config = common.base()
    config.schedule.update({"peak": 1.0, "warmup": 10, **options})
    rate = schedule(config.schedule, 100)
    for step, value in points.items():
        np.testing.assert_allclose(rate(step), value, rtol=1e-5, err_msg=str(step))


@pytest.mark.parametrize("step", [0, 4, 50])
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_another_number_of_updates_is_announced_during_warm_up_too(kind, step):
    """Both schedules rise alike: what one compares there says nothing of what follows."""
    before, now = common.base(), common.base()
    for config, steps in ((before, 1000), (now, 2000)):
        config.schedule.update(kind=kind, peak=1.0, warmup=10, end=0.0, decay_steps=0)
        config.train.steps = steps
    said = moved(before, now, step)
    assert "config.train.steps makes the schedule 2000 updates long, which was 1000" in said
    assert said.endswith("--config.schedule.decay_steps=1000")
    number, new, old = re.search(r"update (\d+) has the learning rate (\S+) instead of (\S+);", said).groups()
    for config, rate in ((before, old), (now, new)):
        exact = schedule(config.schedule, config.train.steps)(int(number) - 1)
        assert float(rate) == pytest.approx(float(exact), abs=0.005)
    assert float(new) > 1.3 * float(old)
    assert moved(before, now, now.train.steps) is None  # there is no update that it could move
    now.schedule.decay_steps = 1000
    assert moved(before, now, step) is None
    for config in (before, now):
        config.schedule.update(kind="rsqrt", decay_steps=0)
    assert moved(before, now, step) is None


def test_updates_beyond_the_end_of_the_schedule_are_announced():
    config = common.base()
    config.schedule.update(kind="cosine", peak=1.0, warmup=10, end=0.0, decay_steps=100)
    config.train.steps = 300
    assert "from update 151 on the learning rate is 0.0e+00" in ended(config, 150)
    assert "from update 101 on the learning rate is 0.0e+00" in ended(config, 50)
    assert ended(config, 300) is None  # there are none
    config.schedule.end = 0.1
    assert ended(config, 100) is None
    config.schedule.update(end=0.0, decay_steps=0)
    assert ended(config, 299) is None  # it falls until the last update, whose rate is next to nothing anyway


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_no_rate_is_below_zero_where_it_is_compiled(kind):
    options = common.base().schedule.to_dict() | {"kind": kind, "peak": 3e-3, "warmup": 5, "end": 0.0}
    for steps in range(6, 60):
        assert 0 <= jax.jit(schedule(options | {"decay_steps": 0}, steps))(steps) < 1e-9


def test_keys_that_a_kind_of_schedule_does_not_look_at_are_told_of():
    config = common.base()
    config.schedule.update(kind="constant", hold=5, beneath_warmup=True)
    assert idle(config) == (
        "config.schedule.hold = 5 and config.schedule.beneath_warmup = True changes nothing: config.schedule.kind = "
        "constant has no use for it"
    )
    config.schedule.update(kind="rsqrt", beneath_warmup=False)
    assert idle(config) is None


@pytest.mark.parametrize("kind", ["constant", "rsqrt", "linear", "cosine"])
def test_a_warm_up_beyond_what_is_counted_is_refused(kind):
    options = common.base().schedule.to_dict() | {"kind": kind, "warmup": 2_000_000_000, "hold": 2_000_000_000}
    with pytest.raises(
        UserError, match=r"config\.schedule\.warmup = 2000000000 \+ config\.schedule\.hold = 2000000000 is "
    ):
        schedule(options, 100)


def test_whatever_bounds_the_schedule_is_to_be_raised():
    options = common.base().schedule.to_dict() | {"kind": "linear", "warmup": 5}
    for decay_steps, key in ((4, "config.schedule.decay_steps"), (0, "config.train.steps")):
        with pytest.raises(UserError, match=f"than the 4 updates of the schedule; lower it, .*, or raise {key}$"):
            schedule(options | {"decay_steps": decay_steps}, 4)
