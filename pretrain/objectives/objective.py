"""What objectives have in common, as most of them have it (`__init__.py` lists all that they offer)."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp


class Objective:
    """It predicts a part of a text, writes nothing that a batch could judge, and has no teacher; nothing smooths it."""

    bits = None
    decoded = ()
    ratios: Mapping[str, tuple[str, str]] = {}
    smooths = False
    teacher = None

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        return dict.fromkeys(self.terms, jnp.sum(batch["weights"]))

    def figures(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """The perplexity of the tokens that are predicted, and how many they are."""
        return {"perplexity": perplexity(terms["loss"]), "tokens": int(totals["counts"]["loss"])}

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what is shown."""
        return (*self.terms, "perplexity")


def perplexity(nats: float) -> float:
    """e to the power of `nats` a token; infinite where that is beyond the largest float."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
