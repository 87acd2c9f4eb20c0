"""Masked language modelling and sentence pairs: the sum of two means.

Next-sentence prediction is Devlin et al. 2018's, sentence order Lan et al. 2019's. Logits over the vocabulary are made
for the masked tokens alone.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pretrain.errors import UserError
from pretrain.losses.cross_entropy import cross_entropy
from pretrain.losses.objective import BoundModel, Objective, perplexity


@dataclasses.dataclass(frozen=True)
class Masked(Objective):
    """`mlm` in nats a masked token, `nsp` or `sop` in nats a pair, and the accuracy of each."""

    pairs: str  # the name of the second term; "" where rows are of one text

    distill_mask = "segments"

    needs = "an encoder, or a decoder with config.model.bidirectional=true"

    @classmethod
    def serves(cls, model) -> bool:
        return not model.causal and not {"inputs", "ranks"} & {*model.inputs}

    @classmethod
    def from_config(cls, config, model) -> "Masked":
        objective = config.objective
        if objective.next_sentence and not (model.has_nsp_head and model.types >= 2):
            raise UserError(
                "config.objective.next_sentence=true needs config.model.pair_head=true and config.model.types=2. Set "
                "both."
            )
        rows = model.input_limits.get("languages", 0)
        if bool(rows) != bool(objective.languages) or rows < len(config.data.languages):
            raise UserError(
                f"config.model.languages={rows} does not match config.objective.languages={objective.languages} or "
                f"config.data.languages={tuple(config.data.languages)}. Change one of them."
            )
        pairs = "sop" if objective.swapped_pairs else "nsp"
        return cls(pairs if objective.next_sentence else "")

    @property
    def batch_features(self) -> tuple[str, ...]:
        return ("slots", "targets", "weights", *(("next", "next_weights") if self.pairs else ()))

    @property
    def terms(self) -> Mapping[str, float]:
        pairs = {self.pairs: 1.0, f"{self.pairs}_accuracy": 0.0} if self.pairs else {}
        return {"mlm": 1.0, "mlm_accuracy": 0.0} | pairs

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        # Rows without a second text have no weight in the second mean.
        masked = jnp.sum(batch["weights"])
        pairs = jnp.sum(batch["next_weights"]) if self.pairs else None
        return {name: masked if name.startswith("mlm") else pairs for name in self.terms}

    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None):
        states, carried = model(batch, carried, key)
        # K of T places are masked, about 15 %: logits for the others would be wasted.
        at_slots = jnp.take_along_axis(states, batch["slots"][..., None], axis=1)  # [B, K, D]
        head = model.run("head_inputs", at_slots)
        mlm, _, right = cross_entropy(*head, batch["targets"], batch["weights"], accuracy=True)
        sums = {"mlm": mlm, "mlm_accuracy": right}
        if self.pairs:
            logits, labels, weights = model.run("pair_logits", states), batch["next"], batch["next_weights"]
            # The head computes in the model's dtype, losses in float32.
            log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
            sums[self.pairs] = -jnp.sum(weights * jnp.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0])
            sums[f"{self.pairs}_accuracy"] = jnp.sum(weights * (jnp.argmax(logits, axis=1) == labels))
        return sums, carried

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """Perplexity, and the numbers of masked tokens and of pairs."""
        pairs = {"pairs": int(totals["counts"][self.pairs])} if self.pairs else {}
        return {"perplexity": perplexity(terms["mlm"]), "tokens": int(totals["counts"]["mlm"])} | pairs

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", *self.terms, "perplexity")
