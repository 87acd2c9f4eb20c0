"""A model bound to its parameters, and the base classes of objectives."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

STATES = "states"  # named scope of everything that makes hidden states
TEACHER = "teacher"  # named scope of what has no backward pass


@dataclasses.dataclass(frozen=True)
class BoundModel:
    """A model with its parameters, as objectives call it.

    `inputs` are the features of a batch that the model takes; `frozen` are a teacher's parameters.
    """

    model: nn.Module
    params: Any
    inputs: tuple[str, ...]
    frozen: Any = None

    def __call__(self, batch: Mapping, carried, key: jax.Array | None, method: str = "__call__"):
        """(hidden states [B, T, D], recurrent state), from a `method` like the call; a `key` turns dropout on."""
        inputs = {name: batch[name] for name in self.inputs} | {"row": batch["row"], "carried": carried}
        # Flax raises where dropout is on and has no key, so evaluation cannot drop by mistake.
        rngs = {} if key is None else {"dropout": key}
        # The scope separates hidden states from logits when FLOPs are counted (pretrain/costs).
        with jax.named_scope(STATES):
            output = self.model.apply(
                {"params": self.params}, **inputs, train=key is not None, rngs=rngs, method=method
            )
        return output.hidden, output.carried

    def run(self, method: str, *arguments):
        """Call another method of the model."""
        return self.model.apply({"params": self.params}, *arguments, method=method)


class Objective:
    """Defaults of an objective that scores a part of a text and decodes nothing (`__init__.py` has the interface)."""

    bits_metric = None
    decode_metrics = ()
    ratios: Mapping[str, tuple[str, str]] = {}
    supports_smoothing = False
    teacher = None

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        """Every term is divided by the weight of the predicted tokens."""
        return dict.fromkeys(self.terms, jnp.sum(batch["weights"]))

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """Perplexity and the number of predicted tokens."""
        return {"perplexity": perplexity(terms["loss"]), "tokens": int(totals["counts"]["loss"])}

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*self.terms, "perplexity")


@dataclasses.dataclass(frozen=True)
class SmoothedObjective(Objective):
    """The term `loss`, in nats a token. With smoothing or z-loss it only reports, and `objective` is minimised."""

    z_loss: float
    label_smoothing: float

    supports_smoothing = True

    @property
    def terms(self) -> Mapping[str, float]:
        return {"loss": 0.0, "objective": 1.0} if self.z_loss or self.label_smoothing else {"loss": 1.0}

    def sums(self, objective: jax.Array, nll: jax.Array) -> dict[str, jax.Array]:
        """The sums of the terms. Only `objective` is differentiated: `nll` carries no gradient."""
        # Both sums come from the same chunks, so reporting the plain loss costs nothing.
        return {"objective": objective, "loss": nll} if "objective" in self.terms else {"loss": objective}


def perplexity(nats: float) -> float:
    """exp(`nats`), or infinity beyond the largest float."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
