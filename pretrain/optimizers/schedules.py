"""Learning-rate schedules."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import optax

from pretrain.errors import UserError, nearest

NOTHING = 1e-5  # of the peak: the learning rate of updates that learn next to nothing


def schedule(options: Mapping, steps: int) -> optax.Schedule:
    """Learning rate as a function of the number of updates made so far.

    Update n (from 0) of the warm-up uses peak * (n + 1) / warmup, so the first update already counts.
    After `hold` more, `cosine` and `linear` fall to end * peak at `decay_steps` (default `steps`) and stay there: from
    peak, or with `beneath_warmup` from where they would be had they fallen since update 0;
    `rsqrt` falls as peak * sqrt((warmup + hold) / n): with a warm-up as in Vaswani et al. 2017 (section 5.3), where n
    counts from 1, held without one as in Raffel et al. 2019 (section 3.1.2).
    """
    kind, peak, warmup = options["kind"], options["peak"], options["warmup"]
    reached = warmup + options["hold"]
    total = options["decay_steps"] or steps
    if kind not in SCHEDULES:
        raise UserError(f"config.schedule.kind is '{kind}'{nearest(kind, SCHEDULES)}")
    held = f" + config.schedule.hold = {options['hold']}" if options["hold"] else ""
    if reached > total and kind in ("linear", "cosine"):
        longer = "config.schedule.decay_steps" if options["decay_steps"] else "config.train.steps"
        raise UserError(
            f"config.schedule.warmup = {warmup}{held} is longer than the {total} updates of the schedule; lower it, "
            f"such as --config.schedule.warmup=0, or raise {longer}"
        )
    if reached >= 1 << 31:
        raise UserError(f"config.schedule.warmup = {warmup}{held} is beyond the updates that a run counts; lower it")
    if options["hold"] and options["beneath_warmup"] and kind in ("linear", "cosine"):
        raise UserError(
            f"config.schedule.hold = {options['hold']} stays at the peak, and config.schedule.beneath_warmup = true "
            "falls from update 0 on; set one of them to its default"
        )
    begin = 0 if options["beneath_warmup"] and kind in ("linear", "cosine") else reached
    after = SCHEDULES[kind](peak, max(1, total - begin), options["end"], max(1, reached), bool(warmup))

    def rate(count):
        rise = peak * (count + 1) / max(1, warmup)
        fallen = jnp.where(count < begin, peak, after(jnp.maximum(count - begin, 0)))
        return jnp.where(count < warmup, rise, jnp.maximum(fallen, 0))  # compiled, a difference may miss 0 by a bit

    return rate


def moved(before, now, step: int) -> str | None:
    """What to tell a run that goes on after `step` updates, if another length moves its schedule; else None.

    It names the update at which the two schedules are furthest apart.
    `before` and `now` are the whole configs: of the run as it was, and as it goes on.
    """
    if step >= now.train.steps:
        return None
    # Updates still to be made, all or many from end to end: schedules of two lengths differ over long stretches.
    ahead = np.unique(np.linspace(step, now.train.steps - 1, 10_000).astype(np.int32))
    old, new = (
        np.broadcast_to(schedule(config.schedule, config.train.steps)(ahead), ahead.shape) for config in (before, now)
    )
    if np.array_equal(old, new):
        return None
    most = int(np.argmax(np.abs(new - old)))
    was, length = (config.schedule.decay_steps or config.train.steps for config in (before, now))
    key = "schedule.decay_steps" if now.schedule.decay_steps else "train.steps"
    return (
        f"config.{key} makes the schedule {length} updates long, which was {was}: update {ahead[most] + 1} has the "
        f"learning rate {new[most]:.2e} instead of {old[most]:.2e}; to keep the schedule as it was, give "
        f"--config.schedule.decay_steps={was}"
    )


def idle(config) -> str | None:
    """What to tell a run some of whose keys its kind of schedule does not look at."""
    kind, unused = config.schedule.kind, {"constant": ("decay_steps", "hold", "beneath_warmup")}
    unused["rsqrt"] = ("decay_steps", "beneath_warmup")
    given = [f"config.schedule.{key} = {config.schedule[key]}" for key in unused.get(kind, ()) if config.schedule[key]]
    return f"{' and '.join(given)} changes nothing: config.schedule.kind = {kind} has no use for it" if given else None


def ended(config, step: int) -> str | None:
    """What to tell a run that has made `step` updates, if those behind the schedule's end have no rate left."""
    end = config.schedule.decay_steps
    if not end or max(step, end) >= config.train.steps:
        return None
    rate = float(schedule(config.schedule, config.train.steps)(config.train.steps - 1))
    if rate > NOTHING * config.schedule.peak:
        return None
    return (
        f"config.schedule.decay_steps = {end} ends the schedule: from update {max(step, end) + 1} on the learning rate "
        f"is {rate:.1e}, at which next to nothing is learned; give --config.schedule.decay_steps=0 to let it fall "
        "until the last update"
    )


SCHEDULES = {
    "constant": lambda peak, length, end, reached, from_one: optax.constant_schedule(peak),
    "linear": lambda peak, length, end, reached, from_one: optax.linear_schedule(peak, peak * end, length),
    "cosine": lambda peak, length, end, reached, from_one: optax.cosine_decay_schedule(peak, length, end),
    "rsqrt": lambda peak, length, end, reached, from_one: lambda n: peak * jnp.sqrt(reached / (n + reached + from_one)),
}
