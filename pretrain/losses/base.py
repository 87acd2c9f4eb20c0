"""What objectives have in common, as most of them have it (`__init__.py` lists all that they offer)."""

import dataclasses
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
        """For each term the weight of the tokens that are predicted."""
        return dict.fromkeys(self.terms, jnp.sum(batch["weights"]))

    def figures(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """The perplexity of the tokens that are predicted, and how many they are."""
        return {"perplexity": perplexity(terms["loss"]), "tokens": int(totals["counts"]["loss"])}

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what is shown."""
        return (*self.terms, "perplexity")


@dataclasses.dataclass(frozen=True)
class Smoothed(Objective):
    """The term `loss`, in nats a token; with smoothing or z-loss that only reports, and `objective` is minimised."""

    z_loss: float
    label_smoothing: float

    smooths = True

    @property
    def terms(self) -> Mapping[str, float]:
        return {"loss": 0.0, "objective": 1.0} if self.z_loss or self.label_smoothing else {"loss": 1.0}

    def losses(self, objective: jax.Array, nll: jax.Array) -> dict[str, jax.Array]:
        """The sums of the terms. What is differentiated is always `objective`: `nll` carries no gradient."""
        return {"objective": objective, "loss": nll} if "objective" in self.terms else {"loss": objective}


def perplexity(nats: float) -> float:
    """e to the power of `nats` a token; infinite where that is beyond the largest float."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
