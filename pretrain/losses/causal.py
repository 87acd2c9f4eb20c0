"""Causal language modelling: the cross-entropy of every token given those before it."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from input_pipeline.corruption import reads_records
from pretrain.errors import UserError
from pretrain.losses.cross_entropy import adaptive_cross_entropy, cross_entropy
from pretrain.losses.objective import BoundModel, Objective, SmoothedObjective, perplexity
from pretrain.losses.seq2seq import check_names


@dataclasses.dataclass(frozen=True)
class Causal(SmoothedObjective):
    """`loss` in nats a token, over every token of a text."""

    predicted: int | None  # ids from here on are read but never predicted, such as a start symbol; None: all are
    bits_metric: str | None  # the name that the literature uses for such data

    batch_features = ("targets", "weights")
    distill_mask = "weights"  # where windows overlap each token is scored once

    needs = "a causal model"

    @classmethod
    def serves(cls, model) -> bool:
        return model.causal

    @classmethod
    def of_section(cls, section: Mapping) -> type["Causal"]:
        if reads_records(section):
            return Answers
        # The section of another objective with these scores may lack both keys.
        if section.get("metrics") or section.get("loss_on", "all") != "all":
            raise UserError("config.objective.metrics and loss_on=targets need records. Set config.objective.inputs.")
        return cls

    @classmethod
    def from_config(cls, config, model) -> "Causal":
        # A start symbol has a row of the input table alone.
        predicted = model.vocab_size if model.input_vocab_size > model.vocab_size else None
        bits_metric = "bits_per_dim" if config.data.image else "bits_per_byte"
        return cls(config.train.z_loss, config.train.label_smoothing, predicted, bits_metric)

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        _, weights = self._targets(batch)
        return dict.fromkeys(self.terms, jnp.sum(weights))

    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None):
        targets, weights = self._targets(batch)
        hidden, carried = model(batch, carried, key)
        head = model.run("head_inputs", hidden)
        if head is None:  # an adaptive softmax has several matrices
            return {"loss": adaptive_cross_entropy(model.run("cluster_inputs", hidden), targets, weights)}, carried
        objective, nll = cross_entropy(
            *head, targets, weights, z_loss=self.z_loss, label_smoothing=self.label_smoothing
        )
        return self.sums(objective, nll), carried

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """Perplexity, bits a byte (an image's dimension is a byte too), and the totals they are made of.

        Bits are None where the tokenizer rewrites text, whose bytes are then unknown.
        """
        nll, tokens = totals["sums"]["loss"], totals["counts"]["loss"]
        return {
            "perplexity": perplexity(terms["loss"]),
            # Per byte of the text itself, so that tokenizers compare.
            self.bits_metric: nll / math.log(2) / data.bytes if data.bytes else None,
            "tokens": int(tokens),
            "nll": nll,
            "bytes": data.bytes,
            "words": data.words,
        }

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*self.terms, "perplexity", self.bits_metric)

    def _targets(self, batch: Mapping) -> tuple[jax.Array, jax.Array]:
        """Targets and weights; ids that are never predicted have no weight."""
        targets, weights = batch["targets"], batch["weights"]
        if self.predicted is None:
            return targets, weights
        # Id 0 for targets without weight: an index out of range would read NaN, and 0 x NaN is NaN.
        known = targets < self.predicted
        return jnp.where(known, targets, 0), jnp.where(known, weights, 0.0)


@dataclasses.dataclass(frozen=True)
class Answers(Causal):
    """`loss` in nats a token of prompts and answers or of answers alone; metrics of answers that are decoded."""

    metrics: tuple[str, ...] = ()
    most_written: int = 0
    context: int = 0  # of the model

    @classmethod
    def from_config(cls, config, model) -> "Answers":
        section, context = config.objective, model.context
        check_names(section)
        if section.metrics and section.target_length >= context:
            raise UserError(
                f"config.objective.target_length={section.target_length}: leaves no prompt in config.model.context="
                f"{context}. Lower it."
            )
        if section.metrics and config.evaluate.beyond:
            raise UserError("config.evaluate.beyond: needs an encoder_decoder. Set config.objective.target_length.")
        how = dataclasses.replace(Causal.from_config(config, model), bits_metric=None)
        return cls(**vars(how), metrics=tuple(section.metrics), most_written=section.target_length, context=context)

    @property
    def writes(self) -> bool:
        return bool(self.metrics)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*self.terms, "perplexity", *self.metrics)

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        return Objective.summarize(self, terms, totals, data) | {"examples": len(data.order)}

    def prompts(self, batch: Mapping) -> tuple[np.ndarray, np.ndarray, dict]:
        """The prompts of rows of one example, without their beginning where it would leave no room for an answer."""
        width = min(batch["tokens"].shape[1], self.context + 1 - self.most_written)
        tokens = np.zeros((len(batch["tokens"]), width), np.int32)
        for row, ids, size in zip(tokens, batch["tokens"], batch["prompt"].tolist(), strict=True):
            # The end of a prompt is nearest to its answer. The id that begins a row stays: training always had it.
            kept = ids[:size] if size <= width else np.append(ids[:1], ids[size + 1 - width : size])
            row[: len(kept)] = kept
        return tokens, np.clip(batch["prompt"], 1, width).astype(np.int32), {}
