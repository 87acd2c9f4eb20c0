"""Causal language modelling: the cross-entropy of every token given those before it."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pretrain.errors import UserError
from pretrain.losses import adaptive
from pretrain.losses.applied import Applied
from pretrain.losses.base import Smoothed, perplexity
from pretrain.losses.cross_entropy import cross_entropy


@dataclasses.dataclass(frozen=True)
class Causal(Smoothed):
    """The terms of `Smoothed`, of every token of a text."""

    predicted: int | None  # ids from here on are read but never predicted (a start symbol); None: all are
    bits: str  # what the literature calls bits of such data

    reads = ("targets", "weights")
    taught = "weights"  # where windows overlap each token is scored once

    @classmethod
    def of(cls, config, model) -> "Causal":
        """The objective of a config."""
        if not model.causal:
            raise UserError(
                "config.objective.kind = causal predicts each token from those before it, and this model, of "
                f"config.model.kind = {config.model.kind}, sees more; choose another kind of either, or set "
                "config.model.bidirectional of a decoder to false"
            )
        for key in ("z_loss", "label_smoothing"):
            if config.train[key] and not model.one_softmax:
                raise UserError(
                    f"config.train.{key} = {config.train[key]} acts on one softmax over the whole vocabulary, and "
                    f"config.model.cutoffs makes several; set config.train.{key} to 0 or drop the cutoffs"
                )
        predicted = model.vocab_size if model.reads > model.vocab_size else None
        bits = "bits_per_dim" if config.data.image else "bits_per_byte"
        return cls(config.train.z_loss, config.train.label_smoothing, predicted, bits)

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        _, weights = self._scorable(batch)
        return dict.fromkeys(self.terms, jnp.sum(weights))

    def score(self, model: Applied, batch: Mapping, carried, key: jax.Array | None):
        targets, weights = self._scorable(batch)
        hidden, carried = model(batch, carried, key)
        head = model.run("head_inputs", hidden)
        if head is None:  # no single matrix
            return {"loss": adaptive.cross_entropy(model.run("softmaxes", hidden), targets, weights)}, carried
        hidden, matrix, bias = head
        objective, nll = cross_entropy(
            hidden,
            matrix.astype(hidden.dtype),
            bias,
            targets,
            weights,
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
        )
        return self.losses(objective, nll), carried

    def figures(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """What a scoring pass says besides its terms: of all its tokens, each scored once.

        Perplexity; the bits of a byte of text, a dimension of an image being one colour of one pixel, which is a byte
        too: None where the tokenizer rewrites text, which is not all predicted then; the number of tokens scored, their
        nll in nats, bytes, and where all of a split was scored its words.
        """
        nll, tokens = totals["sums"]["loss"], totals["counts"]["loss"]
        return {
            "perplexity": perplexity(terms["loss"]),
            self.bits: nll / math.log(2) / data.bytes if data.bytes else None,
            "tokens": int(tokens),
            "nll": nll,
            "bytes": data.bytes,
            "words": data.words,
        }

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what is shown."""
        return (*self.terms, "perplexity", self.bits)

    def _scorable(self, batch: Mapping) -> tuple[jax.Array, jax.Array]:
        """Targets and weights, without weight on a start symbol that has a row to be read, but none to be predicted."""
        targets, weights = batch["targets"], batch["weights"]
        if self.predicted is None:
            return targets, weights
        known = targets < self.predicted
        return jnp.where(known, targets, 0), jnp.where(known, weights, 0.0)
