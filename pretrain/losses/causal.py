"""Causal language modelling: the cross-entropy of every token given those before it."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pretrain.losses.cross_entropy import adaptive_cross_entropy, cross_entropy
from pretrain.losses.objective import BoundModel, SmoothedObjective, perplexity


@dataclasses.dataclass(frozen=True)
class Causal(SmoothedObjective):
    """`loss` in nats a token, over every token of a text."""

    predicted: int | None  # ids from here on are read but never predicted, such as a start symbol; None: all are
    bits_metric: str  # the name that the literature uses for such data

    batch_features = ("targets", "weights")
    distill_mask = "weights"  # where windows overlap each token is scored once

    needs = "a causal model"

    @classmethod
    def serves(cls, model) -> bool:
        return model.causal

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
