"""The train step: pure functions over explicit state.

    state, metrics = train_step(spec, state, batch)

A loss is a sum of named terms, each weight x sum / denominator (`pretrain.losses`). Denominators are summed over the
whole global batch before anything is differentiated, and gradients are sums until they are divided once at the end. So
one batch in one part, in many parts, on one device or on many is the same update.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from models.layers.init import is_box
from pretrain.losses.objective import BoundModel
from pretrain.optimizers.transforms import mask_unfrozen, where
from pretrain.step import recurrent_state

READ = ("segments", "input_segments")  # features that are 0 at padding


@struct.dataclass
class TrainState:
    """Everything that changes while training. Field names are keys in checkpoints."""

    step: jax.Array  # updates made, skipped ones included
    params: Any
    opt_state: Any
    rng: jax.Array  # never changes: the key of step n is fold_in(rng, n)
    carried: Any  # the recurrent state; {} for models without
    bad_in_row: jax.Array  # steps skipped since the last good one
    bad_total: jax.Array


def unboxed(parameters):
    """Shapes of parameters, without boxes."""
    return jax.tree.map(lambda box: box.value, parameters, is_leaf=is_box)


def init_params(model, key):
    """Initial parameters, boxed with their logical axis names."""
    return model.init(key, **model.example())["params"]


def parameters_of(model):
    """Shapes of a model's parameters, boxed."""
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def init_state(spec, seed: int, batch_size: int) -> TrainState:
    """The state at step 0; a function of `seed` alone, on any devices."""
    # Two streams: initial parameters do not depend on what training draws.
    init_rng, run_rng = jax.random.split(jax.random.key(seed))
    return _state(spec, nn.unbox(init_params(spec.model, init_rng)), run_rng, batch_size)


def state_shapes(spec, batch_size: int) -> TrainState:
    """Shapes of `init_state`, from those of the parameters: the model is not traced again."""
    return jax.eval_shape(lambda params: _state(spec, params, jax.random.key(0), batch_size), spec.param_shapes)


def _state(spec, params, run_rng, batch_size: int) -> TrainState:
    carried = recurrent_state.start(spec.model, batch_size)
    zero = jnp.zeros([], jnp.int32)
    return TrainState(
        zero,
        params,
        spec.optimizer.init(spec.partition.trained(params)),
        jax.random.key_data(run_rng),
        carried,
        zero,
        zero,
    )


def gradients(spec, params, batch: Mapping, carried, key, counts: Mapping, frozen=None, axis_name: str | None = None):
    """(gradient of the loss times its first term's denominator, sums of all terms, recurrent state).

    The gradient is that of the trained parameters. counts: the denominators of the whole global batch. frozen: a
    teacher's parameters. The batch is split into `spec.parts(rows)` parts, one after the other.
    """
    params, fixed = spec.partition.split(params)

    def weighted_sum(params, rows, carried, key):
        model = BoundModel(spec.model, spec.partition.join(params, fixed), spec.inputs, frozen, axis_name)
        sums, carried = spec.objective.score(model, rows, carried, key)
        return _weighted_sum(spec.objective.terms, sums, counts), (sums, carried)

    grad = jax.grad(weighted_sum, has_aux=True)
    parts = spec.parts(len(batch["row"]))
    if parts == 1:
        gradient, (sums, carried) = grad(params, batch, carried, key)
        return gradient, sums, carried

    # One part after the other: the activations of one are in memory.
    def body(total, part):
        gradient, (sums, carried) = grad(params, *part, key)  # one key for all parts: dropout draws by row
        return jax.tree.map(jnp.add, total, (gradient, sums)), carried

    row_axes = recurrent_state.axes(spec.model)
    rows = jax.tree.map(lambda a: recurrent_state.split(a, 0, parts), dict(batch))
    split = jax.tree.map(lambda a, axis: recurrent_state.split(a, axis, parts), carried, row_axes)
    # Parts are added up in float32, whatever type the parameters are stored in.
    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params), dict.fromkeys(counts, jnp.float32(0))
    (gradient, sums), split = jax.lax.scan(body, zeros, (rows, split))
    return gradient, sums, jax.tree.map(recurrent_state.join, split, row_axes)


def _weighted_sum(terms: Mapping[str, float], sums: Mapping, counts: Mapping) -> jax.Array:
    """The loss times the first term's denominator, so that one term of weight 1 is its plain sum."""
    first, *others = (name for name, weight in terms.items() if weight)
    loss = sums[first] if terms[first] == 1 else terms[first] * sums[first]
    for name in others:
        # Denominators are of the whole batch and carry no gradient.
        loss += terms[name] * _nonzero(counts[first]) / _nonzero(counts[name]) * sums[name]
    return loss


def _nonzero(count):
    """A denominator, or 1 where nothing was counted: the sum is 0 then."""
    return jnp.where(count > 0, count, 1)


def train_step(spec, state: TrainState, batch: Mapping, frozen=None, axis_name: str | None = None):
    """One update: (new state, metrics). Under pmap, sums are added up over `axis_name`.

    A step whose loss or gradient is not finite changes only the counters and the recurrent state, which moves on with
    the text. Metrics: `sums` and `counts` of every term; `read`, tokens that the model read; `grad_norm` before
    clipping; `learning_rate`, of a skipped step what it would have been.
    """
    terms = spec.objective.terms
    # A function of (seed, step) alone, so that a resumed run draws the same numbers.
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    # Denominators first: each device and part divides by those of the whole global batch.
    counts, read = spec.objective.denominators(batch), tokens_read(batch)
    if axis_name:
        counts, read = jax.lax.psum((counts, read), axis_name)
    gradient, sums, carried = gradients(spec, state.params, batch, state.carried, key, counts, frozen, axis_name)
    if axis_name:
        gradient, sums = jax.lax.psum((gradient, sums), axis_name)
    first = next(name for name, weight in terms.items() if weight)
    # One division after all additions, so that the split of the batch changes only the order of a sum.
    scale = 1 / _nonzero(counts[first])
    updates_made = state.step - state.bad_total  # as the optimizer counts them
    gradient = mask_unfrozen(spec.roles, jax.tree.map(lambda g: g * scale, gradient), updates_made)
    # A NaN or infinity in any leaf makes this one number NaN or infinite.
    grad_norm = optax.tree.norm(gradient)
    good = jnp.stack([jnp.isfinite(sums[name]) for name, weight in terms.items() if weight]).all()
    good &= jnp.isfinite(grad_norm)

    # `good` is data, not a branch: `lax.cond` would copy parameters and optimizer state.
    trained, fixed = spec.partition.split(state.params)
    updates, opt_state = spec.optimizer.update(gradient, state.opt_state, trained, good=good)
    updates = mask_unfrozen(spec.roles, updates, updates_made)  # decay, too
    params = where(good, optax.apply_updates(trained, updates), trained)

    bad = (~good).astype(jnp.int32)
    metrics = {
        "sums": sums,
        "counts": counts,
        "read": read,
        "grad_norm": grad_norm,
        "learning_rate": spec.learning_rate(updates_made),
        "bad_in_row": (state.bad_in_row + 1) * bad,
        "bad_total": state.bad_total + bad,
    }
    # The step counts skipped updates too: it is the position of randomness, and of the data without rewinds.
    state = TrainState(
        step=state.step + 1,
        params=spec.partition.join(params, fixed),
        opt_state=opt_state,
        rng=state.rng,
        carried=recurrent_state.reset_nonfinite(spec.model, carried),
        bad_in_row=metrics["bad_in_row"],
        bad_total=metrics["bad_total"],
    )
    return state, metrics


def evaluate_step(spec, params, batch: Mapping, carried, frozen=None, axis_name: str | None = None):
    """({"sums", "counts", "read", "outputs"} of a batch, recurrent state), without dropout.

    outputs: of tasks, arrays [B, ...] by name; {} of other objectives.
    """
    # Without a key: Flax then refuses any dropout.
    model = BoundModel(spec.eval_model, params, spec.inputs, frozen, axis_name)
    sums, outputs, carried = spec.objective.evaluate(model, batch, carried)
    counts = spec.objective.denominators(batch)
    return {"sums": sums, "counts": counts, "read": tokens_read(batch), "outputs": outputs}, carried


def tokens_read(batch: Mapping) -> jax.Array:
    """Tokens that the model reads: all but padding, on both sides of an encoder-decoder."""
    return sum(jnp.sum(batch[name] != 0) for name in READ if name in batch)
