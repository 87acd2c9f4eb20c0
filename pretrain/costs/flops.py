"""How many floating-point operations a token takes, under one stated definition.

Counted are the multiply-adds of matrix products and convolutions, two FLOPs each, of the traced forward pass of the
objective on its model: projections, attention scores, weighted values, feed-forward, logits. The backward pass takes
twice the forward pass, so training takes three forward passes, and of a teacher one. Not counted: table look-ups,
norms, softmax, the optimiser, and anything computed again in the backward pass.

Attention is counted by both conventions in use, whichever path computes it. `full`: a causal dense layer is charged all
T keys of the row, as most published figures have it. `causal`: it is charged the keys it may see, (T + 1) / 2 in the
mean, about half. A sparse layer is charged the keys it may see in both.

So Transformer-XL's keys reach over its memory, whose keys and values are projected anew in every segment, and an
adaptive softmax is charged all its clusters for every token. What is made once for the whole batch, however many rows
it has, such as the keys of distances, is left out.
"""

import dataclasses
import math
from collections import Counter
from functools import partial

import jax
from flax import linen as nn

from models.layers.chunks import undivided
from models.transformer.block import Block
from pretrain.costs import attention, program
from pretrain.losses.applied import STATES, TEACHER, Applied
from pretrain.step import recurrent_state
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import READ, unboxed

TRAIN = 3  # forward passes in one training step: itself and a backward pass of twice its products


def flops_per_token(spec: TrainSpec, length: int) -> dict[str, float]:
    """FLOPs of training on one token that the model reads, of rows of `length`: {"full": FLOPs, "causal": FLOPs}."""
    return of_training(forward_flops(spec, length))


def of_training(forward: dict[str, dict[str, float]]) -> dict[str, float]:
    """FLOPs of training on one token by convention, as `flops_per_token`, from what `forward_flops` gave."""
    return {
        convention: sum(count * (1 if part == TEACHER else TRAIN) for part, count in parts.items())
        for convention, parts in forward.items()
    }


def forward_flops(spec: TrainSpec, length: int) -> dict[str, dict[str, float]]:
    """FLOPs of one token's forward pass by part of the model: {"full": {part: FLOPs}, "causal": {...}}.

    Parts are the branches of the layers by their names, attention's own products apart from its projections; what a
    model projects before the layers, and what comes after it; of a teacher, all together.
    """
    model = spec.model.clone(attention_path=attention.DESCRIBED)
    one, two = (_trace(spec, model, rows, length) for rows in (1, 2))
    tokens, counts = tokens_of_row(spec, length), {}
    for convention in attention.CONVENTIONS:
        charges = program.PRODUCTS | {attention.ATTENTION.name: partial(attention.multiply_adds, convention=convention)}
        of_row = program.multiply_adds(two, charges)
        of_row.subtract(program.multiply_adds(one, charges))
        counts[convention] = {part: 2 * count / tokens for part, count in _by_part(of_row).items()}
    return counts


def tokens_of_row(spec: TrainSpec, length: int) -> int:
    """How many tokens the model reads of a row of `length` without padding."""
    features = spec.features(1, length)
    return sum(math.prod(features[name].shape) for name in READ if name in features)


def _trace(spec: TrainSpec, model: nn.Module, rows: int, length: int):
    """The forward pass of so many rows, without dropout."""
    batch, carried = spec.batch_shapes(rows, length), recurrent_state.shapes(model, rows)
    objective, frozen = spec.objective, unboxed(spec.frozen_parameters)
    if frozen:
        teacher = objective.teacher.clone(attention_path=attention.DESCRIBED)
        objective = dataclasses.replace(objective, teacher=teacher)

    def forward(params, batch, carried, frozen):
        return objective.score(Applied(model, params, spec.inputs, frozen), batch, carried, None)

    with undivided():
        return jax.make_jaxpr(forward)(spec.param_shapes, batch, carried, frozen).jaxpr


def _by_part(counts: Counter) -> dict[str, int]:
    """Multiply-adds by part, in the order of the program; the scopes are those that Flax names after modules."""
    attending = {_branch(scopes) for scopes, primitive in counts if primitive == attention.ATTENTION.name}
    parts = Counter()
    for (scopes, primitive), count in counts.items():
        branch = _branch(scopes)
        if TEACHER in scopes:
            part = TEACHER
        elif primitive == attention.ATTENTION.name:
            part = f"{branch or 'attention'} scores and values"
        elif branch:
            part = f"{branch} projections" if branch in attending else branch
        else:
            part = "embedding projections" if scopes[:1] == (STATES,) else "logits"
        parts[part] += count
    return {part: count for part, count in parts.items() if count}


def _branch(scopes: tuple[str, ...]) -> str | None:
    """The name of the branch of a block that the scopes are in; Flax numbers blocks that have no name."""
    blocks = (place for place, scope in enumerate(scopes[:-1]) if scope.partition("_")[0] == Block.__name__)
    place = next(blocks, None)
    return None if place is None else scopes[place + 1].replace("_", "-")
