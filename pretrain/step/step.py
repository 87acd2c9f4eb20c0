"""The train step: pure functions over explicit state.

    state, metrics = train_step(state, batch)

Losses and gradients are sums over tokens until the very end, where they are divided by the number of
tokens once; so one batch in one part, in many parts, on one device or on many, is the same update.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from pretrain.step.losses import cross_entropy


@struct.dataclass
class TrainState:
    """All that changes while training; a checkpoint holds exactly this, and the position in the data."""

    step: jax.Array  # updates made, skipped ones included
    params: Any
    opt_state: Any
    rng: jax.Array  # never changes: the key of step n is fold_in(rng, n)
    memory: Any  # recurrent memory, {} for models without
    bad_in_row: jax.Array  # updates skipped since the last good one
    bad_total: jax.Array


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a step is made of, apart from state and data."""

    model: nn.Module
    evaluated: nn.Module  # the model as evaluation runs it, on the same parameters
    segmented: bool  # whether rows hold several documents, to be kept apart
    optimizer: optax.GradientTransformation
    rate: Callable  # learning rate by update
    accumulate: int
    z_loss: float
    label_smoothing: float


def example_batch(length: int) -> dict:
    """The smallest batch that a model can be initialised with."""
    return {name: jnp.ones((1, length), jnp.int32) for name in ("tokens", "positions", "segments")}


def init_params(model, rng, length: int):
    """Initial parameters, boxed with their logical axis names."""
    batch = example_batch(length)
    return model.init(rng, batch["tokens"], positions=batch["positions"], segments=batch["segments"])["params"]


def init_state(recipe: Recipe, seed: int, batch_size: int) -> TrainState:
    """The state before the first update; a function of `seed` alone, whatever the devices."""
    init_rng, run_rng = jax.random.split(jax.random.key(seed))
    params = nn.unbox(init_params(recipe.model, init_rng, 1))
    memory = init_memory(recipe.model, batch_size)
    zero = jnp.zeros([], jnp.int32)
    return TrainState(zero, params, recipe.optimizer.init(params), jax.random.key_data(run_rng), memory, zero, zero)


def init_memory(model, batch_size: int):
    """A model's recurrent memory at the start of its streams; {} for models without."""
    return model.init_memory(batch_size) if hasattr(model, "init_memory") else {}


def _finite_memory(model, memory):
    """`memory` with nothing in the lanes where it is not finite: they start afresh, as they would in a new epoch.

    Each leaf is [L, B, ...]. So what a lane remembers is always the text right before its next row, or nothing.
    """
    leaves = jax.tree.leaves(memory)
    if not leaves:
        return memory
    lanes = leaves[0].shape[1]
    finite = jnp.stack([jnp.isfinite(leaf).all(axis=(0, *range(2, leaf.ndim))) for leaf in leaves]).all(0)

    def keep(leaf, empty):
        return jnp.where(finite.reshape(1, lanes, *(1,) * (leaf.ndim - 2)), leaf, empty)

    return jax.tree.map(keep, memory, init_memory(model, lanes))


def forward(recipe: Recipe, params, batch: Mapping, memory, *, rng=None):
    """Hidden states [B, T, D] of a batch, and the next memory. `rng` given means training: dropout is on.

    Where rows are no more than one document each, whose padding comes last, a causal model needs no segments; and
    kernels that know none, such as cuDNN's, can serve.
    """
    model, inputs = recipe.model, {"positions": batch["positions"]}
    if recipe.segmented:
        inputs["segments"] = batch["segments"]
    if memory:
        inputs |= {"memory": memory, "reset": batch["reset"]}
    rngs = {} if rng is None else {"dropout": rng}
    output = model.apply({"params": params}, batch["tokens"], **inputs, train=rng is not None, rngs=rngs)
    return output.hidden, output.memory if memory else memory


def _scorable(model, batch: Mapping) -> Mapping:
    """The batch without weight on a start symbol that the model has a row to read for, but none to predict."""
    if not getattr(model, "start_row", False):
        return batch
    known = batch["targets"] < model.vocab_size
    return {
        **batch,
        "targets": jnp.where(known, batch["targets"], 0),
        "weights": jnp.where(known, batch["weights"], 0.0),
    }


def loss_sums(recipe: Recipe, params, batch: Mapping, memory, rng):
    """(objective, (nll, new memory)): sums over the batch's weighted tokens, in nats."""
    hidden, memory = forward(recipe, params, batch, memory, rng=rng)
    head = recipe.model.apply({"params": params}, hidden, method="head_inputs")
    if head is None:  # no single matrix: an adaptive softmax, which scores targets itself
        scores = recipe.model.apply({"params": params}, hidden, batch["targets"], method="log_probs")
        nll = -jnp.sum(batch["weights"] * scores)
        return nll, (nll, memory)
    hidden, matrix, bias = head
    objective, nll = cross_entropy(
        hidden,
        matrix.astype(hidden.dtype),
        bias,
        batch["targets"],
        batch["weights"],
        z_loss=recipe.z_loss,
        label_smoothing=recipe.label_smoothing,
    )
    return objective, (nll, memory)


def summed_gradients(recipe: Recipe, params, batch: Mapping, memory, rng):
    """Gradient of the summed objective, worked out in `recipe.accumulate` parts: (gradient, nll, new memory)."""
    grad = jax.value_and_grad(lambda *args: loss_sums(recipe, *args), has_aux=True)
    parts = recipe.accumulate
    if parts == 1:
        (_, (nll, memory)), gradient = grad(params, batch, memory, rng)
        return gradient, nll, memory

    def body(carry, part):
        index, rows, part_memory = part
        (_, (nll, part_memory)), gradient = grad(params, rows, part_memory, jax.random.fold_in(rng, index))
        return jax.tree.map(jnp.add, carry, (gradient, nll)), part_memory

    rows = jax.tree.map(lambda a: _split(a, 0, parts), dict(batch))
    lanes = jax.tree.map(lambda m: _split(m, 1, parts), memory)
    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params), jnp.float32(0)
    (gradient, nll), memory = jax.lax.scan(body, zeros, (jnp.arange(parts), rows, lanes))
    return gradient, nll, jax.tree.map(lambda m: _join(m, 1), memory)


def _split(array, axis: int, parts: int):
    """`axis` in `parts`: part k has rows k, k + parts, ..., so every device works on its own rows in every part."""
    shape = array.shape
    return jnp.moveaxis(array.reshape(*shape[:axis], -1, parts, *shape[axis + 1 :]), axis + 1, 0)


def _join(array, axis: int):
    """The inverse of `_split`."""
    array = jnp.moveaxis(array, 0, axis + 1)
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def train_step(recipe: Recipe, state: TrainState, batch: Mapping, axis_name: str | None = None):
    """One update: (new state, metrics). `axis_name` is pmap's axis, over which sums are then added up.

    An update whose loss or gradient is not finite changes nothing but the counters and the memory, which goes on with
    the text all the same. Metrics: `nll`, `tokens` (scored, by weight) and `read` (all but padding) are sums;
    `grad_norm` is before clipping; `learning_rate` scales the update, or would have if it had been good.
    """
    batch = _scorable(recipe.model, batch)
    rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    if axis_name:
        rng = jax.random.fold_in(rng, jax.lax.axis_index(axis_name))
    gradient, nll, memory = summed_gradients(recipe, state.params, batch, state.memory, rng)
    tokens, read = jnp.sum(batch["weights"]), jnp.sum(batch["segments"] != 0)
    if axis_name:
        gradient, nll, tokens, read = jax.lax.psum((gradient, nll, tokens, read), axis_name)
    scale = 1 / jnp.maximum(tokens, 1)
    gradient = jax.tree.map(lambda g: g * scale, gradient)
    grad_norm = optax.tree.norm(gradient)
    good = jnp.isfinite(nll) & jnp.isfinite(grad_norm)

    updates, opt_state = recipe.optimizer.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)  # noqa: E731
    bad = (~good).astype(jnp.int32)
    metrics = {
        "nll": nll,
        "tokens": tokens,
        "read": read,
        "grad_norm": grad_norm,
        "learning_rate": recipe.rate(state.step - state.bad_total),  # the optimiser counts the updates that it made
        "bad_in_row": (state.bad_in_row + 1) * bad,
        "bad_total": state.bad_total + bad,
    }
    state = TrainState(
        step=state.step + 1,
        params=keep(params, state.params),
        opt_state=keep(opt_state, state.opt_state),
        rng=state.rng,
        memory=_finite_memory(recipe.model, memory),
        bad_in_row=metrics["bad_in_row"],
        bad_total=metrics["bad_total"],
    )
    return state, metrics


def evaluate_step(recipe: Recipe, params, batch: Mapping, memory):
    """({"nll", "tokens", "read"} as sums, new memory) of a batch, without dropout, smoothing or z-loss."""
    batch = _scorable(recipe.evaluated, batch)
    _, (nll, memory) = loss_sums(
        dataclasses.replace(recipe, model=recipe.evaluated, z_loss=0.0, label_smoothing=0.0),
        *(params, batch, memory, None),
    )
    return {"nll": nll, "tokens": jnp.sum(batch["weights"]), "read": jnp.sum(batch["segments"] != 0)}, memory
