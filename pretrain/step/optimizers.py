"""Optimisers and learning-rate schedules, from optax, assembled as the papers have them.

Three things optax leaves to its user are settled here once. Decay: decoupled, on matrices but not on
biases and norm gains, whatever their rank. Bias correction: can be off (BERT, ALBERT, ELECTRA, XLNet).
Layers: parameters of all layers are stored stacked, [L, ...], so an optimiser that looks at a whole
tensor (LAMB's trust ratio, Adafactor's RMS and factors, Muon's orthogonalisation) is mapped over L.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pretrain.errors import UserError, nearest
from pretrain.parallel.mesh import path_name


def schedule(options: Mapping, steps: int) -> optax.Schedule:
    """Learning rate as a function of the number of updates made so far.

    Update n (from 0) of the warm-up uses peak * (n + 1) / warmup, so the first update already counts.
    After `hold` more, `cosine` and `linear` fall to end * peak at `decay_steps` (default `steps`) and stay there: from
    peak, or with `beneath_warmup` from where they would be had they fallen since update 0;
    `rsqrt` falls as peak * sqrt((warmup + hold) / n): with a warm-up as in Vaswani et al. 2017 (section 5.3), held
    without one as in Raffel et al. 2019 (section 3.1.2).
    """
    kind, peak, warmup = options["kind"], options["peak"], options["warmup"]
    reached = warmup + options["hold"]
    total = options["decay_steps"] or steps
    if kind not in SCHEDULES:
        raise UserError(f"config.schedule.kind is '{kind}'{nearest(kind, SCHEDULES)}")
    if reached > total and kind in ("linear", "cosine"):
        held = f" + config.schedule.hold = {options['hold']}" if options["hold"] else ""
        raise UserError(
            f"config.schedule.warmup = {warmup}{held} is longer than the {total} updates of the schedule; lower it, "
            "such as --config.schedule.warmup=0, or raise config.train.steps"
        )
    begin = 0 if options["beneath_warmup"] and kind in ("linear", "cosine") else reached
    after = SCHEDULES[kind](peak, max(1, total - begin), options["end"], max(1, reached))

    def rate(count):
        rise = peak * (count + 1) / max(1, warmup)
        return jnp.where(count < warmup, rise, after(jnp.maximum(count - begin, 0)))

    return rate


def moved(before, now, step: int) -> str | None:
    """What to tell a run that goes on after `step` updates, if a new `train.steps` moves its schedule; else None.

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
    length = before.schedule.decay_steps or before.train.steps
    return (
        f"config.train.steps is {now.train.steps} and was {before.train.steps}, which moves the schedule: update "
        f"{ahead[most] + 1} has the learning rate {new[most]:.2e} instead of {old[most]:.2e}; to keep the schedule as "
        f"it was, give --config.schedule.decay_steps={length}"
    )


SCHEDULES = {
    "constant": lambda peak, length, end, warmup: optax.constant_schedule(peak),
    "linear": lambda peak, length, end, warmup: optax.linear_schedule(peak, peak * end, length),
    "cosine": lambda peak, length, end, warmup: optax.cosine_decay_schedule(peak, length, end),
    "rsqrt": lambda peak, length, end, warmup: lambda count: peak * jnp.sqrt(warmup / (count + warmup)),
}


def build(options: Mapping, schedule_options: Mapping, steps: int) -> optax.GradientTransformation:
    """The optimiser of `config.optimizer`, from gradients to the change of the parameters."""
    name = options["name"]
    if name not in OPTIMIZERS:
        raise UserError(f"config.optimizer.name is '{name}'{nearest(name, OPTIMIZERS)}")
    if options["decay"] not in DECAY:
        raise UserError(f"config.optimizer.decay is '{options['decay']}'{nearest(options['decay'], DECAY)}")
    clip = optax.clip_by_global_norm(options["clip"]) if options["clip"] else optax.identity()
    rate = schedule(schedule_options, steps)
    return optax.chain(clip, OPTIMIZERS[name](options), optax.scale_by_learning_rate(rate))


def is_matrix(path) -> bool:
    """Whether a parameter is a matrix or table, rather than a bias or a norm's gain (stacked, those have two axes "
    "too)."""
    name = path_name(path).rsplit("/", 1)[-1]
    return name != "scale" and not name.endswith("bias")


def _matrices(tree):
    return jax.tree_util.tree_map_with_path(lambda path, _: is_matrix(path), tree)


DECAY = {"matrices": _matrices, "all": lambda tree: jax.tree.map(lambda _: True, tree)}


def _decay(options) -> optax.GradientTransformation:
    if not options["weight_decay"]:
        return optax.identity()
    return optax.add_decayed_weights(options["weight_decay"], mask=DECAY[options["decay"]])


def per_layer(transformation: optax.GradientTransformation) -> optax.GradientTransformation:
    """`transformation` with each layer of a stacked parameter [L, ...] as a tensor of its own.

    Equal to running it over unstacked layers; for transformations that treat tensors one by one.
    """

    def init(params):
        return jax.vmap(transformation.init)(params)

    def update(updates, state, params=None):
        return jax.vmap(transformation.update)(updates, state, params)

    stacked = optax.GradientTransformation(init, update)
    return optax.partition({"plain": transformation, "stacked": stacked}, _stacked_labels)


def _stacked_labels(tree):
    def label(path, _):
        return "stacked" if "layers" in path_name(path).split("/") else "plain"

    return jax.tree_util.tree_map_with_path(label, tree)


def _first_and_second_moment(options) -> optax.GradientTransformation:
    adam = {"b1": options["b1"], "b2": options["b2"], "eps": options["epsilon"]}
    return optax.scale_by_adam(**adam) if options["bias_correction"] else _uncorrected_adam(**adam)


def _uncorrected_adam(b1, b2, eps) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) with plain moving averages (the BERT release's optimiser)."""

    def init(params):
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)  # noqa: E731
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=zeros(), nu=zeros())

    def update(updates, state, params=None):
        del params
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment(updates, state.nu, b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def _adamw(options):
    return optax.chain(_first_and_second_moment(options), _decay(options))


def _lamb(options):
    """LAMB (You et al. 2019); biases and norm gains keep a trust ratio of 1, as in ALBERT's release."""
    ratio = optax.masked(per_layer(optax.scale_by_trust_ratio()), _matrices)
    return optax.chain(_first_and_second_moment(options), _decay(options), ratio)


def _adafactor(options):
    """Adafactor as T5 trains with it (Shazeer & Stern 2018): factored, update clipping 1, scaled by RMS(param)."""
    tensorwise = optax.chain(
        optax.scale_by_factored_rms(decay_rate=0.8, epsilon=1e-30),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(1e-3),
    )
    return optax.chain(per_layer(as_on_paper(tensorwise)), _decay(options))


def as_on_paper(transformation: optax.GradientTransformation) -> optax.GradientTransformation:
    """`transformation` with a layer's matrices as [inputs, outputs] and all else as vectors.

    Attention's kernels are stored [D, N, H] and [N, H, D], its biases [N, H]. To an optimiser that factors they are
    [D, N H], [N H, D] and [N H], as in T5: the two largest of three axes would leave the third in its state.
    """

    def reshape(path, leaf):
        if leaf.ndim < 2 or not is_matrix(path):
            return leaf.reshape(-1)
        return leaf.reshape(math.prod(leaf.shape[: _input_dims(path, leaf.ndim)]), -1)

    def flat(tree):
        return jax.tree_util.tree_map_with_path(reshape, tree)

    def update(updates, state, params=None):
        changed, state = transformation.update(flat(updates), state, None if params is None else flat(params))
        return jax.tree.map(lambda new, old: new.reshape(old.shape), changed, updates), state

    return optax.GradientTransformation(lambda params: transformation.init(flat(params)), update)


def _sgd(options):
    return optax.chain(optax.trace(options["b1"]) if options["b1"] else optax.identity(), _decay(options))


def _lion(options):
    return optax.chain(optax.scale_by_lion(b1=options["b1"], b2=options["b2"]), _decay(options))


def _muon(options):
    """Muon (Jordan et al. 2024) on the matrices inside the layers, AdamW on everything else.

    Orthogonal updates are scaled to the root-mean-square of Adam's, about .2 (Liu et al. 2025, section
    2.2), so one learning rate serves both.
    """
    orthogonal = optax.contrib.scale_by_muon(beta=options["b1"], weight_dimension_numbers=_dimension_numbers)

    def match_adam(updates, params=None):
        del params

        def scale(path, update):
            inputs = math.prod(update.shape[: _input_dims(path, update.ndim)])
            return update * 0.2 * math.sqrt(max(inputs, update.size // inputs))

        return jax.tree_util.tree_map_with_path(scale, updates)

    def labels(tree):
        def label(path, _):
            return "muon" if "layers" in path_name(path).split("/") and is_matrix(path) else "adam"

        return jax.tree_util.tree_map_with_path(label, tree)

    rules = {
        "muon": per_layer(optax.chain(orthogonal, optax.stateless(match_adam))),
        "adam": optax.scale_by_adam(b1=0.9, b2=options["b2"], eps=options["epsilon"]),
    }
    return optax.chain(optax.partition(rules, labels), _decay(options))


def _input_dims(path, ndim: int) -> int:
    """How many leading dimensions of a layer's matrix are inputs: attention's output projection is [N, H, D]."""
    return ndim - 1 if "output" in path_name(path).split("/") else 1


def _dimension_numbers(tree):
    def numbers(path, leaf):
        inputs = _input_dims(path, leaf.ndim)
        return optax.contrib.MuonDimensionNumbers(tuple(range(inputs)), tuple(range(inputs, leaf.ndim)))

    return jax.tree_util.tree_map_with_path(numbers, tree)


OPTIMIZERS = {"adamw": _adamw, "adafactor": _adafactor, "lamb": _lamb, "sgd": _sgd, "lion": _lion, "muon": _muon}
