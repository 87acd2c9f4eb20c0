"""Masked language modelling and next-sentence prediction (Devlin et al. 2018): the sum of two means.

Or sentence-order prediction (Lan et al. 2019), where what does not follow precedes. Logits over the vocabulary are made
for the masked tokens alone.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pretrain.errors import UserError
from pretrain.losses.applied import Applied
from pretrain.losses.base import Objective, perplexity
from pretrain.losses.cross_entropy import cross_entropy


@dataclasses.dataclass(frozen=True)
class Masked(Objective):
    """The terms `mlm`, in nats a masked token, and `nsp` or `sop`, in nats a pair; of each how many are right.

    pairs: the name of the second term; empty where rows are of one text.
    """

    pairs: str

    taught = "segments"

    @classmethod
    def of(cls, config, model) -> "Masked":
        """The objective of a config."""
        if model.causal or "inputs" in model.inputs:
            raise UserError(
                f"config.objective.kind = masked predicts tokens from both sides, and config.model.kind = "
                f"{config.model.kind} predicts from one; choose an encoder or set config.model.bidirectional of a "
                "decoder, or choose another config.objective.kind"
            )
        if "ranks" in model.inputs:
            raise UserError(
                f"config.objective.kind = masked hides tokens, and config.model.kind = {config.model.kind} predicts "
                "them in an order; choose an encoder, or config.objective.kind = permutation"
            )
        if config.objective.next_sentence and not model.tells_pairs:
            raise UserError(
                "config.objective.next_sentence = true needs a head that tells pairs of texts apart, and this model of "
                f"kind {config.model.kind} has none; set it to false, or config.model.pair_head of an encoder to true"
            )
        if config.objective.next_sentence and model.types < 2:
            raise UserError(
                f"config.objective.next_sentence = true tells two texts apart, and config.model.types = {model.types} "
                "has one row for both; set --config.model.types=2"
            )
        rows = model.limits.get("languages", 0)
        if bool(rows) != bool(config.objective.languages) or rows < len(config.data.languages):
            raise UserError(
                f"config.model.languages = {rows} is the rows of a table, config.objective.languages = "
                f"{config.objective.languages} whether batches tell languages, and config.data.languages has "
                f"{len(config.data.languages)}; set the first to that at least and the second to true, or none of them"
            )
        pairs = "sop" if config.objective.swapped_pairs else "nsp"
        return cls(pairs if config.objective.next_sentence else "")

    @property
    def reads(self) -> tuple[str, ...]:
        return ("slots", "targets", "weights", *(("next", "next_weights") if self.pairs else ()))

    @property
    def terms(self) -> Mapping[str, float]:
        pairs = {self.pairs: 1.0, f"{self.pairs}_accuracy": 0.0} if self.pairs else {}
        return {"mlm": 1.0, "mlm_accuracy": 0.0} | pairs

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        masked = jnp.sum(batch["weights"])
        pairs = jnp.sum(batch["next_weights"]) if self.pairs else None
        return {name: masked if name.startswith("mlm") else pairs for name in self.terms}

    def score(self, model: Applied, batch: Mapping, carried, key: jax.Array | None):
        states, carried = model(batch, carried, key)
        at_slots = jnp.take_along_axis(states, batch["slots"][..., None], axis=1)  # [B, K, D]
        hidden, matrix, bias = model.run("head_inputs", at_slots)
        mlm, _, right = cross_entropy(
            hidden, matrix.astype(hidden.dtype), bias, batch["targets"], batch["weights"], hits=True
        )
        sums = {"mlm": mlm, "mlm_accuracy": right}
        if self.pairs:
            logits, labels, weights = model.run("pair_logits", states), batch["next"], batch["next_weights"]
            log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
            sums[self.pairs] = -jnp.sum(weights * jnp.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0])
            sums[f"{self.pairs}_accuracy"] = jnp.sum(weights * (jnp.argmax(logits, axis=1) == labels))
        return sums, carried

    def figures(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """The perplexity of the masked tokens, how many they are, and how many pairs."""
        pairs = {"pairs": int(totals["counts"][self.pairs])} if self.pairs else {}
        return {"perplexity": perplexity(terms["mlm"]), "tokens": int(totals["counts"]["mlm"])} | pairs

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what is shown."""
        return ("loss", *self.terms, "perplexity")
