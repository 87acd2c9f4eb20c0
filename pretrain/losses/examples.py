"""Losses of tasks on labelled examples: classes, numbers, choices, tags.

Besides its terms an objective here gives `outputs` for each example, from which metrics and predictions are made on
the host (`pretrain.tasks`).
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from models.transformer.task_head import Task
from pretrain.losses.cross_entropy import cross_entropy
from pretrain.losses.objective import BoundModel, Objective

BOTH_STACKS = {"inputs": "tokens", "input_segments": "segments", "input_positions": "positions"}


@dataclasses.dataclass(frozen=True)
class ExampleObjective(Objective):
    """A loss for each row of one vector."""

    metrics: tuple[str, ...]

    batch_features = ("labels", "weights", "segments")
    derived_inputs = tuple(BOTH_STACKS)
    needs = "a model with a head for tasks"
    unit: ClassVar[str] = "row"

    @classmethod
    def serves(cls, model) -> bool:
        return model.task is not None

    @classmethod
    def from_config(cls, config, model) -> "ExampleObjective":
        return cls(tuple(config.objective.metrics))

    @classmethod
    def task(cls, section: Mapping) -> Task:
        """The head that the objective of `config.objective` needs."""
        return Task(cls.unit, len(section["labels"]))

    @property
    def terms(self) -> Mapping[str, float]:
        return {"loss": 1.0}

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*self.terms, *self.metrics)

    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None):
        sums, _, carried = self.evaluate(model, batch, carried, key)
        return sums, carried

    def evaluate(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None = None):
        logits, _, carried = self.logits(model, batch, carried, key)
        losses = self.losses(logits, batch["labels"])
        return {"loss": jnp.sum(batch["weights"] * losses)}, {"logits": logits}, carried

    def logits(self, model: BoundModel, batch: Mapping, carried, key):
        """([B, outputs] float32, hidden states, recurrent state) of the rows of a batch."""
        hidden, carried = self.states(model, batch, carried, key)
        places = jnp.zeros_like(batch["row"])
        if model.model.summary_place == "last":
            # The last token of each text; 0 in rows of padding.
            places = jnp.maximum(jnp.sum(batch["segments"] > 0, axis=1) - 1, 0)
        return model.predict(hidden, places, batch["row"], key), hidden, carried

    def states(self, model: BoundModel, batch: Mapping, carried, key):
        """(hidden states [B, T, D], recurrent state) of the rows of a batch."""
        if "inputs" in model.inputs:
            batch = for_both_stacks(batch)
        inputs = {name: batch[name] for name in (*model.inputs, "row")}
        if rows := model.model.input_limits.get("types"):  # RoBERTa's table has one row, for both texts
            inputs["types"] = jnp.minimum(inputs["types"], rows - 1)
        return model(inputs, carried, key)

    @abc.abstractmethod
    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """The loss of each example, [B] float32."""

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """The number of labelled examples."""
        return {"examples": int(totals["counts"]["loss"])}


class Classification(ExampleObjective):
    """`loss` in nats an example, over the classes."""

    @classmethod
    def of_section(cls, section: Mapping) -> type["Classification"]:
        return ClassificationAndText if cls is Classification and section["lm_weight"] else cls

    def losses(self, logits, labels):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


@dataclasses.dataclass(frozen=True)
class ClassificationAndText(Classification):
    """The loss of the classes, `label`, and of all tokens of a row given those before them, `lm`.

    Radford et al. 2018, section 3.3: weights 1 and 0.5.
    """

    lm_weight: float = 0.0

    batch_features = ("labels", "weights", "segments", "tokens")
    needs = "a causal model with one softmax, without model.mix, for objective.lm_weight"

    @classmethod
    def from_config(cls, config, model) -> "ClassificationAndText":
        return cls(tuple(config.objective.metrics), config.objective.lm_weight)

    @classmethod
    def task(cls, section: Mapping) -> Task:
        return dataclasses.replace(super().task(section), predicts_tokens=True)

    @classmethod
    def serves(cls, model) -> bool:
        return super().serves(model) and model.causal and model.single_softmax and not model.mixes

    @property
    def terms(self) -> Mapping[str, float]:
        return {"label": 1.0, "lm": self.lm_weight}

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", *super().metric_names)

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        return {"label": jnp.sum(batch["weights"]), "lm": jnp.sum(next_tokens(batch)[1])}

    def evaluate(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None = None):
        logits, hidden, carried = self.logits(model, batch, carried, key)
        label = jnp.sum(batch["weights"] * self.losses(logits, batch["labels"]))
        # The same hidden states serve both heads: no second pass through the model.
        lm, _ = cross_entropy(*model.run("head_inputs", hidden), *next_tokens(batch))
        return {"label": label, "lm": lm}, {"logits": logits}, carried

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        return {"examples": int(totals["counts"]["label"])}


class Regression(ExampleObjective):
    """`loss` is the squared error of an example."""

    @classmethod
    def task(cls, section: Mapping) -> Task:
        return Task(cls.unit, 1)

    def losses(self, logits, labels):
        return jnp.square(logits[:, 0] - labels)


class Choice(Classification):
    """`loss` in nats an example, over its choices: features of tokens are [B, C, T]."""

    @classmethod
    def task(cls, section: Mapping) -> Task:
        return Task(cls.unit, 1)

    def logits(self, model: BoundModel, batch: Mapping, carried, key):
        logits, hidden, carried = super().logits(model, as_rows(batch), carried, key)
        return logits.reshape(batch["tokens"].shape[:2]), hidden, carried


class Tagging(ExampleObjective):
    """`loss` in nats a word; `outputs` are the likeliest tags at all tokens, int32 [B, T]."""

    batch_features = ("labels", "weights")
    unit = "token"

    def evaluate(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None = None):
        hidden, carried = self.states(model, batch, carried, key)
        logits = model.predict(hidden, None, batch["row"], key)
        losses = self.losses(logits, batch["labels"])
        return {"loss": jnp.sum(batch["weights"] * losses)}, {"tags": jnp.argmax(logits, axis=-1)}, carried

    def losses(self, logits, labels):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """The number of sentences."""
        return {"examples": len(data.order)}


def next_tokens(batch: Mapping) -> tuple[jax.Array, jax.Array]:
    """The token after each token of a row [B, T], and 1 where there is one."""
    targets, segments = (jnp.roll(batch[name], -1, axis=1) for name in ("tokens", "segments"))
    # The roll brings a row's first token to its end.
    last = jnp.arange(targets.shape[1])[None] == targets.shape[1] - 1
    return targets, ((segments > 0) & ~last).astype(jnp.float32)


def as_rows(batch: Mapping) -> dict:
    """The batch with the R rows of each example, of features [B, R, T], as B R rows of a batch."""
    B, R, T = batch["tokens"].shape
    rows = {name: batch[name].reshape(B * R, T) for name in ("tokens", "types", "segments", "positions")}
    # Each draws its own dropout: rows are numbered as if they were those of a batch.
    return {**batch, **rows, "row": (batch["row"][:, None] * R + jnp.arange(R)[None]).reshape(-1)}


def for_both_stacks(batch: Mapping) -> dict:
    """The batch with the text as the encoder's inputs, and shifted right as the decoder's.

    The decoder begins with the text's last token (Lewis et al. 2019, section 3.1, and the released code).
    """
    tokens = batch["tokens"]
    last = jnp.maximum(jnp.sum(batch["segments"] > 0, axis=1, keepdims=True) - 1, 0)
    shifted = jnp.concatenate([jnp.take_along_axis(tokens, last, axis=1), tokens[:, :-1]], axis=1)
    return {**batch, **{name: batch[same] for name, same in BOTH_STACKS.items()}, "tokens": shifted}
