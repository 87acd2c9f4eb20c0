"""Distillation (Sanh et al. 2019, section 3): a student learns a teacher's probabilities and states beside the text.

Both read the same rows. Logits of both are made chunk by chunk, those of all tokens never at once.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

import models
from models.layers.logits import biased, head_logits
from models.layers.products import product
from pretrain.errors import UserError
from pretrain.losses.applied import TEACHER, Applied
from pretrain.losses.base import Objective
from pretrain.losses.chunked import summed
from pretrain.losses.cross_entropy import chunk_rows, softmax

KINDS = ("masked", "causal")  # of objectives whose student can have a teacher


@dataclasses.dataclass(frozen=True)
class Distilled(Objective):
    """The terms of the text's own objective, `hard`, with its weights times `weight`; and, a token that it says is
    `taught`, `kl`, in nats, from the teacher's probabilities to the student's at the temperature, and `cosine`.

    kl is weighted by the temperature's square too, which its gradient is divided by.
    """

    hard: Any  # of pretrain.losses
    weight: float
    soft: float
    cosine: float
    temperature: float
    teacher: nn.Module

    @classmethod
    def of(cls, config, model, hard) -> "Distilled":
        """The objective of a config whose student, `model`, has a teacher, around its `hard` objective."""
        distill, kind = config.distill, config.objective.kind
        if kind not in KINDS:
            raise UserError(
                f"config.distill.teacher = {distill.teacher} is for objectives of kind {' or '.join(KINDS)}, not "
                f"{kind}; leave it empty, or choose one of those"
            )
        if not (distill.soft or distill.hard or distill.cosine):
            raise UserError(
                "config.distill.soft, .hard and .cosine are 0, all three, so that there is nothing to learn; set one "
                "of them above 0"
            )
        teacher = models.build(config.model.to_dict() | distill.model.to_dict())
        for one, section in ((model, "config.model"), (teacher, "config.distill.model")):
            if not one.one_softmax or jax.eval_shape(partial(one.start, 1)):
                raise UserError(
                    f"{section} has cutoffs or a memory, and config.distill.teacher compares logits of one softmax, "
                    "row by row; use models without"
                )
        if teacher.vocab_size != model.vocab_size:
            raise UserError(
                f"the teacher of config.distill.teacher = {distill.teacher} has {teacher.vocab_size} ids and "
                f"config.model.vocab_size = {model.vocab_size}, so that their probabilities cannot be compared; set "
                f"--config.model.vocab_size={teacher.vocab_size}"
            )
        if distill.cosine and teacher.width != model.width:
            raise UserError(
                f"config.distill.cosine = {distill.cosine} compares states, of which the teacher's have width "
                f"{teacher.width} and the model's {model.width}; set --config.model.width={teacher.width}, or "
                "--config.distill.cosine=0"
            )
        length = max(config.data.length, config.evaluate.length)
        if teacher.context < length:
            raise UserError(
                f"the teacher of config.distill.teacher = {distill.teacher} reads rows of {teacher.context} tokens at "
                f"most, and config.data.length or config.evaluate.length is {length}; lower that"
            )
        if config.train.start_from and distill.layers:
            raise UserError(
                f"config.train.start_from = {config.train.start_from} and config.distill.layers both say what update 0 "
                "begins with; leave one out"
            )
        _check_layers(distill.layers, model, teacher)
        return cls(hard, distill.hard, distill.soft, distill.cosine, distill.temperature, teacher)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.hard.reads, self.hard.taught)))

    @property
    def terms(self) -> Mapping[str, float]:
        hard = {name: self.weight * weight for name, weight in self.hard.terms.items()}
        cosine = {"cosine": self.cosine} if self.cosine else {}
        return hard | {"kl": self.soft * self.temperature**2} | cosine

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        tokens = jnp.sum(batch[self.hard.taught] > 0).astype(jnp.float32)
        return self.hard.denominators(batch) | {name: tokens for name in ("kl", "cosine") if name in self.terms}

    def score(self, model: Applied, batch: Mapping, carried, key: jax.Array | None):
        states, carried = model(batch, carried, key)
        sums, _ = self.hard.score(_Known(model, states, carried), batch, carried, key)
        weights = (batch[self.hard.taught] > 0).astype(jnp.float32)
        inputs = tuple(name for name in self.teacher.inputs if name in model.inputs)
        with jax.named_scope(TEACHER):
            teacher = Applied(self.teacher, model.frozen, inputs)
            taught = jax.lax.stop_gradient(teacher(batch, {}, None)[0])
            known = jax.lax.stop_gradient(teacher.run("head_inputs", taught))
        hidden, matrix, bias = model.run("head_inputs", states)
        rows = max(1, chunk_rows(self.teacher.vocab_size) // 2)  # two of them are at hand
        of_chunk = partial(_kl, self.temperature)
        # [D, V], whose gradient is a product with hidden states on the left, which XLA transposes on a CPU.
        shared = matrix.T, bias
        (sums["kl"],) = summed(of_chunk, rows, hidden, shared, (known[0], weights), known[1:])
        if self.cosine:
            sums["cosine"] = jnp.sum(weights * (1 - _cosine(states, taught)))
        return sums, carried

    def figures(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """Those of the objective that has no teacher."""
        return self.hard.figures(terms, totals, data)

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what is shown."""
        return tuple(dict.fromkeys((*self.hard.measures, *self.terms)))

    @property
    def bits(self):
        return self.hard.bits

    @property
    def decoded(self):
        return self.hard.decoded


@dataclasses.dataclass(frozen=True)
class _Known:
    """A model whose states of a batch are known already."""

    model: Applied
    states: jax.Array
    carried: Any

    def __call__(self, batch: Mapping, carried, key: jax.Array | None):
        return self.states, self.carried

    def run(self, method: str, *arguments):
        return self.model.run(method, *arguments)


def _kl(temperature: float, hidden, shared, given, known):
    """Of a chunk: the weighted sum of KL(teacher, student), without the teacher's gradient."""
    (turned, bias), (of_teacher, weights) = shared, given
    with jax.named_scope(TEACHER):
        wanted = head_logits(of_teacher, *known) / temperature
    found = biased(product(hidden, turned, 1, jnp.float32), bias)
    return (_divergence(found / temperature, wanted, weights),)


@jax.custom_vjp
def _divergence(found, wanted, weights):
    """The weighted sum of KL(wanted, found): logits [B, c, V] twice, weights [B, c]; differentiated by `found` alone.

    The gradient is made of the probabilities that the value needs.
    """
    return _forward(found, wanted, weights)[0]


def _forward(found, wanted, weights):
    with jax.named_scope(TEACHER):
        wanted_log_z, wanted_shares, wanted_total = softmax(wanted)
    log_z, shares, total = softmax(found)
    kl = jnp.sum(wanted_shares * (wanted - found), axis=-1) / wanted_total + log_z - wanted_log_z
    apart = shares / total[..., None] - wanted_shares / wanted_total[..., None]
    return jnp.sum(weights * kl), weights[..., None] * apart


def _backward(d_found, cotangent):
    return cotangent * d_found, None, None


_divergence.defvjp(_forward, _backward)


def _cosine(one: jax.Array, other: jax.Array) -> jax.Array:
    """[..., D] each -> [...]: the cosine of the angle between them."""
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    lengths = jnp.sqrt(jnp.sum(one**2, -1) * jnp.sum(other**2, -1) + 1e-12)
    return jnp.sum(one * other, -1) / lengths


def _check_layers(layers: tuple[int, ...], model, teacher) -> None:
    if layers and (len(layers) != model.layers or max(layers) >= teacher.layers):
        raise UserError(
            f"config.distill.layers = {tuple(layers)} names {len(layers)} layers of a teacher that has "
            f"{teacher.layers}, from 0 on, for the {model.layers} of config.model.layers; name one for each, or none: "
            "--config.distill.layers=()"
        )


def sets(layers: tuple[int, ...], model, teacher) -> tuple[int, ...]:
    """Which set of the teacher's parameters each of the model's begins as, where its layers begin as those `layers`.

    A set is of one layer or of several, which share it. Errors: UserError where one would begin as several.
    """
    here, there = (one.stack_by("reference").sets for one in (model, teacher))
    begins = dict(zip(here, (there[layer] for layer in layers), strict=True))
    if unlike := [layer for own, layer in zip(here, layers, strict=True) if there[layer] != begins[own]]:
        raise UserError(
            f"config.distill.layers = {tuple(layers)} names layer {unlike[0]} for a layer of the model that by "
            f"config.model.groups = {model.groups} has the same parameters as one for which it names a layer of others"
            "; name layers that share theirs, or none: --config.distill.layers=()"
        )
    return tuple(begins.values())
