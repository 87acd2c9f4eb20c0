"""Replaced-token detection (Clark et al. 2020): a generator's loss on masked tokens, and a discriminator's on all.

The discriminator reads the text with what the generator wrote in place of what was masked. As its model's head has it,
it tells which tokens are not the text's own, or predicts those that are (the paper's ablations).
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pretrain.errors import UserError
from pretrain.losses.applied import Applied
from pretrain.losses.base import Objective, perplexity
from pretrain.losses.copying import copied
from pretrain.losses.cross_entropy import cross_entropy

SAMPLING = 1  # what of a step's key is for samples


@dataclasses.dataclass(frozen=True)
class Replaced(Objective):
    """The terms `mlm`, in nats a slot of the generator's, and of the discriminator, in nats a token that is scored,
    `rtd` (which tokens are replaced) or `original` (which token of the text it is).

    Of `rtd` the share of tokens that are `replaced`, that it takes for replaced (`suspected`), and that are and are
    taken for it (`found`) give recall and precision at even odds: who calls every token original is right about nine
    tokens in ten and has a recall of 0.
    """

    head: str
    weight: float
    generates: bool  # whether there is a generator; else replacements are drawn from all ids alike
    vocab_size: int

    @classmethod
    def of(cls, config, model) -> "Replaced":
        """The objective of a config."""
        if not model.tells_replaced:
            raise UserError(
                f"config.objective.kind = replaced has a generator and a discriminator, and config.model.kind = "
                f"{config.model.kind} is one model; choose kind replaced_tokens, or another config.objective.kind"
            )
        return cls(model.head, config.objective.weight, model.generator_size > 0, model.vocab_size)

    @property
    def reads(self) -> tuple[str, ...]:
        generator = ("targets", "weights") if self.generates else ()
        return ("slots", "originals", "chosen", "token_weights", "draw", *generator)

    @property
    def terms(self) -> Mapping[str, float]:
        generator = {"mlm": 1.0, "mlm_accuracy": 0.0} if self.generates else {}
        if self.head != "replaced":
            return generator | {"original": self.weight, "original_accuracy": 0.0}
        counted = dict.fromkeys(("rtd_accuracy", "replaced", "suspected", "found"), 0.0)
        return generator | {"rtd": self.weight} | counted

    @property
    def ratios(self) -> Mapping[str, tuple[str, str]]:
        if self.head != "replaced":
            return {}
        return {"recall": ("found", "replaced"), "precision": ("found", "suspected")}

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        slots, tokens = jnp.sum(batch["weights"]) if self.generates else None, jnp.sum(batch["token_weights"])
        return {name: slots if name.startswith("mlm") else tokens for name in self.terms}

    def score(self, model: Applied, batch: Mapping, carried, key: jax.Array | None):
        base = jax.random.key(0) if key is None else key  # evaluation draws the same each time
        base = jax.random.fold_in(base, SAMPLING)
        keys = jax.vmap(lambda number: jax.random.fold_in(base, number))(batch["draw"])
        sums, drawn = self._generated(model, batch, keys, key)
        written = jnp.put_along_axis(batch["originals"], batch["slots"], drawn, axis=1, inplace=False)
        read = jnp.where(batch["chosen"], written, batch["originals"])
        states, carried = model(batch | {"tokens": read}, carried, key)
        judged = self._told if self.head == "replaced" else self._predicted
        return sums | judged(model, states, read, batch), carried

    def _generated(self, model: Applied, batch: Mapping, keys, key):
        """The generator's sums, and the tokens that it writes [B, N]: two slots of one place have the same."""
        if not self.generates:
            places = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(keys, batch["slots"])
            return {}, jax.vmap(jax.vmap(lambda one: jax.random.randint(one, (), 0, self.vocab_size)))(places)
        states, _ = model(batch, {}, key, "generate")
        at_slots = jnp.take_along_axis(states, batch["slots"][..., None], axis=1)  # [B, N, D]
        hidden, matrix, bias = model.run("generator_inputs", at_slots)
        matrix = matrix.astype(hidden.dtype)
        loss, _, right, drawn = cross_entropy(
            hidden, matrix, bias, batch["targets"], batch["weights"], hits=True, draws=(keys, batch["slots"])
        )
        return {"mlm": loss, "mlm_accuracy": right}, drawn

    def _told(self, model: Applied, states, read, batch: Mapping):
        """Of which tokens the discriminator tells that they are replaced."""
        logits = model.run("replaced_logits", states)
        is_replaced, weights = read != batch["originals"], batch["token_weights"]
        suspected = logits > 0
        counted = {
            "rtd_accuracy": suspected == is_replaced,
            "replaced": is_replaced,
            "suspected": suspected,
            "found": suspected & is_replaced,
        }
        loss = jnp.sum(weights * (jax.nn.softplus(logits) - jnp.where(is_replaced, logits, 0.0)))
        return {"rtd": loss} | {name: jnp.sum(weights * which) for name, which in counted.items()}

    def _predicted(self, model: Applied, states, read, batch: Mapping):
        """Which tokens of the text the discriminator predicts."""
        hidden, matrix, bias = model.run("head_inputs", states)
        matrix, targets, weights = matrix.astype(hidden.dtype), batch["originals"], batch["token_weights"]
        if self.head == "copied":
            logits = model.run("copy_logits", states)
            loss, right = copied(hidden, matrix, bias, logits, read, targets, weights)
        else:
            loss, _, right = cross_entropy(hidden, matrix, bias, targets, weights, hits=True)
        return {"original": loss, "original_accuracy": right}

    def figures(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """The generator's perplexity, where there is one, and how many tokens the discriminator is scored on."""
        generator = {"perplexity": perplexity(terms["mlm"])} if self.generates else {}
        scored = "rtd" if self.head == "replaced" else "original"
        return generator | {"tokens": int(totals["counts"][scored])}

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what is shown."""
        counted = {name for ratio in self.ratios.values() for name in ratio}
        shown = [name for name in self.terms if name not in counted]
        return ("loss", *shown, *self.ratios, *(["perplexity"] if self.generates else []))
