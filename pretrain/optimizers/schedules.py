"""Learning-rate schedules."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import optax

from configs import common
from pretrain.errors import UserError, lookup

NEGLIGIBLE = 1e-5  # share of the peak below which a learning rate teaches next to nothing


def schedule(options: Mapping, steps: int) -> optax.Schedule:
    """The learning rate by the number of updates made so far.

    Update n (from 0) of the warm-up has peak * (n + 1) / warmup, so the first update already counts. After `hold` more,
    `cosine` and `linear` fall to end * peak at `decay_steps` (default `steps`): from the peak, or with `beneath_warmup`
    from where they would be had they fallen since update 0. `rsqrt` falls as peak * sqrt((warmup + hold) / n); n counts
    from 1 after a warm-up (Vaswani et al. 2017, section 5.3), else from 0 (Raffel et al. 2019, section 3.1.2).

    `wsd` stays at the peak until the last `cooldown` of the steps (Hu et al. 2024, section 4; Hägele et al. 2024,
    section 3). `slanted` rises from peak / ratio during the first `cut_frac` of the steps and falls back to it (Howard
    and Ruder 2018, equation 3).
    """
    kind, peak, warmup, end = (options[key] for key in ("kind", "peak", "warmup", "end"))
    flat, floor, first = warmup + options["hold"], 0.0, 1
    total = options["decay_steps"] or steps
    decay, ends = lookup("config.schedule.kind", kind, SCHEDULES), kind in ("linear", "cosine")
    # BERT's released code counts the decay from step 0, beneath the warm-up.
    begin = 0 if options["beneath_warmup"] and ends else flat
    if kind == "wsd":
        decay = lookup("config.schedule.cooldown_shape", options["cooldown_shape"], COOLDOWNS)
        begin, flat = total - round(total * options["cooldown"]), warmup
    elif kind == "slanted":
        # 1e-9: a product such as 0.29 * 100 may be a bit below the whole number.
        warmup = begin = flat = max(1, int(total * options["cut_frac"] + 1e-9))
        floor, end, first = 1 / options["ratio"], 1 / options["ratio"], 0
    if (ends and flat > total) or (kind == "wsd" and flat > begin):
        longer = "config.schedule.decay_steps" if options["decay_steps"] else "config.train.steps"
        more = f"cooldown={options['cooldown']}" if kind == "wsd" else f"hold={options['hold']}"
        raise UserError(
            f"config.schedule.warmup={warmup} (plus config.schedule.{more}) exceeds the schedule's {total} steps. "
            f"Lower it, or raise {longer}."
        )
    after = decay(peak, max(1, total - begin), end, max(1, flat), bool(warmup))

    # Both branches are computed at each step: `count` is traced.
    def rate(count):
        rise = peak * (floor + (1 - floor) * (count + first) / max(1, warmup))
        fall = jnp.where(count < begin, peak, after(jnp.maximum(count - begin, 0)))
        # Compiled, linear's difference may miss 0 by a bit, and a negative rate would climb the loss.
        return jnp.where(count < warmup, rise, jnp.maximum(fall, 0))

    return rate


def _linear(peak, length, end, flat, from_one):
    return optax.linear_schedule(peak, peak * end, length)


def _one_minus_sqrt(peak, length, end, flat, from_one):
    return lambda n: peak * (1 - (1 - end) * jnp.sqrt(jnp.minimum(n / length, 1)))


# (peak, length after the flat part, end, flat part, whether n counts from 1) -> rate by updates after the flat part
SCHEDULES = {
    "constant": lambda peak, length, end, flat, from_one: optax.constant_schedule(peak),
    "linear": _linear,
    "cosine": lambda peak, length, end, flat, from_one: optax.cosine_decay_schedule(peak, length, end),
    "rsqrt": lambda peak, length, end, flat, from_one: lambda n: peak * jnp.sqrt(flat / (n + flat + from_one)),
    "wsd": _one_minus_sqrt,  # or another of COOLDOWNS
    "slanted": _linear,
}
COOLDOWNS = {"1-sqrt": _one_minus_sqrt, "linear": _linear}  # config.schedule.cooldown_shape
# Keys that a kind ignores, apart from those that no other kind reads.
IGNORED = {
    "constant": ("decay_steps", "hold", "beneath_warmup"),
    "rsqrt": ("decay_steps", "beneath_warmup"),
    "wsd": ("hold", "beneath_warmup"),
    "slanted": ("hold", "beneath_warmup"),
}
OWN = {"wsd": ("cooldown", "cooldown_shape"), "slanted": ("cut_frac", "ratio")}  # keys that only these kinds read


def warn_of_change(before, now, step: int) -> str | None:
    """A warning if the schedule of a run that continues after `step` updates differs from `before`'s, else None.

    It names the update at which the two are furthest apart. Both arguments are whole configs.
    """
    # A schedule of other keys was asked for with --allow.
    same = {key for key in now.schedule if before.schedule[key] == now.schedule[key]} | {"decay_steps"}
    if step >= now.train.steps or same != {*now.schedule}:
        return None
    # 10,000 updates are enough: schedules of two lengths differ over long stretches.
    updates = np.unique(np.linspace(step, now.train.steps - 1, 10_000).astype(np.int32))
    old, new = (
        np.broadcast_to(schedule(config.schedule, config.train.steps)(updates), updates.shape)
        for config in (before, now)
    )
    if np.array_equal(old, new):
        return None
    most = int(np.argmax(np.abs(new - old)))
    was, length = (config.schedule.decay_steps or config.train.steps for config in (before, now))
    key = "schedule.decay_steps" if now.schedule.decay_steps else "train.steps"
    return (
        f"warning: config.{key} changes the schedule from {was} to {length} steps: step {updates[most] + 1} has the "
        f"learning rate {new[most]:.2e} instead of {old[most]:.2e} (--config.schedule.decay_steps={was} keeps it)"
    )


def warn_of_unused_keys(config) -> str | None:
    """A warning if the kind of schedule ignores keys that are set, else None."""
    kind, default = config.schedule.kind, common.base().schedule
    # A decay that counts from step 0 has no flat part.
    names = IGNORED.get(kind, ("hold",) if config.schedule.beneath_warmup else ())
    names += keys_of_others(kind)
    keys = [f"config.schedule.{key}={config.schedule[key]}" for key in names if config.schedule[key] != default[key]]
    return f"warning: {' and '.join(keys)} without effect: config.schedule.kind={kind} ignores it" if keys else None


def keys_of_others(kind: str) -> tuple[str, ...]:
    """Keys that only other kinds of schedule read."""
    return tuple(key for other, keys in OWN.items() if other != kind for key in keys)


def warn_of_end(config, step: int) -> str | None:
    """A warning if updates after the schedule's end have no learning rate left, else None."""
    end = config.schedule.decay_steps
    if not end or max(step, end) >= config.train.steps:
        return None
    rate = float(schedule(config.schedule, config.train.steps)(config.train.steps - 1))
    if rate > NEGLIGIBLE * config.schedule.peak:
        return None
    return (
        f"warning: config.schedule.decay_steps={end} ends the schedule: the learning rate is {rate:.1e} from step "
        f"{max(step, end) + 1} (--config.schedule.decay_steps=0 stretches it to the last step)"
    )
