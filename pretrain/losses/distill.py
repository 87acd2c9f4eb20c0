"""Distillation (Sanh et al. 2019, section 3): a student learns a teacher's probabilities and states beside the text.

Both read the same rows. Logits of both are made chunk by chunk, never those of all tokens at once.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

import models
from models.layers.linear import product
from models.layers.logits import add_bias, head_logits
from pretrain.errors import UserError
from pretrain.losses.cross_entropy import rows_per_chunk, softmax, sum_in_chunks
from pretrain.losses.objective import TEACHER, BoundModel, Objective


@dataclasses.dataclass(frozen=True)
class Distilled(Objective):
    """The terms of the text's own objective, `kl` and `cosine`.

    `kl` is KL(teacher || student) at the temperature, in nats, and `cosine` is 1 - cosine of the last hidden states,
    both a token of the objective's `distill_mask`. The weight of `kl` is times the squared temperature, which its
    gradient is divided by (Hinton et al. 2015, section 2).
    """

    hard: Any  # the objective of the text itself
    weight: float
    soft: float
    cosine: float
    temperature: float
    teacher: nn.Module

    @classmethod
    def from_config(cls, config, model, hard) -> "Distilled":
        """The objective of a student, `model`, around its `hard` objective."""
        distill = config.distill
        teacher = models.build(config.model.to_dict() | distill.model.to_dict())
        if mistake := _mistake(config, model, teacher, hard):
            raise UserError(mistake)
        return cls(hard, distill.hard, distill.soft, distill.cosine, distill.temperature, teacher)

    @property
    def batch_features(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.hard.batch_features, self.hard.distill_mask)))

    @property
    def terms(self) -> Mapping[str, float]:
        hard = {name: self.weight * weight for name, weight in self.hard.terms.items()}
        cosine = {"cosine": self.cosine} if self.cosine else {}
        # A gradient has 1 / T from the student's logits and about 1 / T from the teacher's: T^2 undoes both.
        return hard | {"kl": self.soft * self.temperature**2} | cosine

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        tokens = jnp.sum(batch[self.hard.distill_mask] > 0).astype(jnp.float32)
        return self.hard.denominators(batch) | {name: tokens for name in ("kl", "cosine") if name in self.terms}

    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None):
        states, carried = model(batch, carried, key)
        sums, _ = self.hard.score(_Computed(model, states, carried), batch, carried, key)
        weights = (batch[self.hard.distill_mask] > 0).astype(jnp.float32)
        # The student's batches may lack features that the teacher could take, such as types.
        inputs = tuple(name for name in self.teacher.inputs if name in model.inputs)
        with jax.named_scope(TEACHER):
            teacher = BoundModel(self.teacher, model.frozen, inputs)
            # Neither states nor head carry gradient, so XLA makes no backward pass of the teacher.
            teacher_states = jax.lax.stop_gradient(teacher(batch, {}, None)[0])
            teacher_head = jax.lax.stop_gradient(teacher.run("head_inputs", teacher_states))
        hidden, matrix, bias = model.run("head_inputs", states)
        rows = max(1, rows_per_chunk(self.teacher.vocab_size) // 2)  # logits of two models are in memory
        of_chunk = partial(_kl, self.temperature)
        # [D, V], whose gradient is a product with hidden states on the left, which XLA transposes on a CPU.
        shared = matrix.T, bias
        (sums["kl"],) = sum_in_chunks(of_chunk, rows, hidden, shared, (teacher_head[0], weights), teacher_head[1:])
        if self.cosine:
            sums["cosine"] = jnp.sum(weights * (1 - _cosine(states, teacher_states)))
        return sums, carried

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        return self.hard.summarize(terms, totals, data)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.hard.metric_names, *self.terms)))

    @property
    def bits_metric(self):
        return self.hard.bits_metric


@dataclasses.dataclass(frozen=True)
class _Computed:
    """A model whose hidden states are already computed, so that the hard objective does not run it again."""

    model: BoundModel
    states: jax.Array
    carried: Any

    def __call__(self, *_):
        return self.states, self.carried

    def run(self, method: str, *arguments):
        return self.model.run(method, *arguments)


def _kl(temperature: float, hidden, shared, given, known):
    """One chunk: the weighted sum of KL(teacher || student)."""
    (matrix, bias), (teacher_hidden, weights) = shared, given
    with jax.named_scope(TEACHER):
        teacher_logits = head_logits(teacher_hidden, *known) / temperature
    logits = add_bias(product(hidden, matrix, 1, jnp.float32), bias)
    return (_divergence(logits / temperature, teacher_logits, weights),)


@jax.custom_vjp
def _divergence(logits, teacher_logits, weights):
    """The weighted sum of KL(teacher || student) of logits [B, c, V], weights [B, c]; differentiated by `logits`.

    The gradient is made of the probabilities that the value needs, so both softmaxes are computed once.
    """
    return _divergence_forward(logits, teacher_logits, weights)[0]


def _divergence_forward(logits, teacher_logits, weights):
    with jax.named_scope(TEACHER):
        teacher_log_z, teacher_shares, teacher_total = softmax(teacher_logits)
    log_z, shares, total = softmax(logits)
    # sum p_t (log p_t - log p_s), with log p = logits - log Z and the shares unnormalised.
    kl = jnp.sum(teacher_shares * (teacher_logits - logits), axis=-1) / teacher_total + log_z - teacher_log_z
    # d KL / d logits of the student: its probabilities minus the teacher's.
    difference = shares / total[..., None] - teacher_shares / teacher_total[..., None]
    return jnp.sum(weights * kl), weights[..., None] * difference


def _divergence_backward(d_logits, cotangent):
    return cotangent * d_logits, None, None


_divergence.defvjp(_divergence_forward, _divergence_backward)


def _cosine(one: jax.Array, other: jax.Array) -> jax.Array:
    """[..., D] each -> [...]: the cosine of the angle between them."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    lengths = jnp.sqrt(jnp.sum(one**2, -1) * jnp.sum(other**2, -1) + 1e-12)  # padding can be all zeros
    return jnp.sum(one * other, -1) / lengths


def _mistake(config, model, teacher, hard) -> str | None:
    """Why the teacher's logits, states or layers cannot be compared with the model's; None if they can."""
    distill, layers, length = config.distill, config.distill.layers, max(config.data.length, config.evaluate.length)
    name = f"config.distill.teacher={distill.teacher}"
    unlike = f"differs from {name}. Set it to"
    partial_softmax = not (model.single_softmax and teacher.single_softmax)
    memory = any(jax.eval_shape(partial(one.init_memory, 1)) for one in (model, teacher))
    mistakes = (
        (not hard.distill_mask, f"{name} does not serve config.objective.kind={config.objective.kind}. Leave it out."),
        (partial_softmax or memory, f"{name} excludes config.model.cutoffs and .memory. Drop them."),
        (teacher.context < length, f"{name} has a context of {teacher.context}. Lower the rows' {length} tokens."),
        (model.vocab_size != teacher.vocab_size, f"config.model.vocab_size {unlike} {teacher.vocab_size}."),
        (distill.cosine and model.width != teacher.width, f"config.model.width {unlike} {teacher.width}."),
        (
            layers and (len(layers) != model.layers or max(layers) >= teacher.layers),
            f"config.distill.layers={tuple(layers)} must name one of the teacher's layers 0 to {teacher.layers - 1} "
            f"for each of config.model.layers={model.layers}.",
        ),
        (
            layers and config.train.start_from,
            f"config.train.start_from={config.train.start_from} and config.distill.layers both give initial "
            "parameters. Leave one out.",
        ),
    )
    return next((sentence for wrong, sentence in mistakes if wrong), None)


def teacher_sets(layers: tuple[int, ...], model, teacher) -> tuple[int, ...]:
    """The teacher's parameter set that each set of the model starts from, by the teacher's `layers`.

    A set is shared by one layer or several. Errors: UserError where one set would start from several.
    """
    # Layer -> parameter set of each stack: ALBERT's layers share one.
    here, there = (one.build_stack("reference").param_index for one in (model, teacher))
    starts = dict(zip(here, (there[layer] for layer in layers), strict=True))
    if unlike := [layer for own, layer in zip(here, layers, strict=True) if there[layer] != starts[own]]:
        raise UserError(
            f"config.distill.layers={tuple(layers)}: layer {unlike[0]} and another start one group of layers "
            f"(config.model.groups={model.groups}), but differ. Name layers with the same parameters."
        )
    return tuple(starts.values())
