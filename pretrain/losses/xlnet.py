"""Permutation language modelling (Yang et al. 2019): the cross-entropy of the predicted places."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax

from pretrain.errors import UserError
from pretrain.losses.cross_entropy import cross_entropy
from pretrain.losses.objective import BoundModel, Objective


@dataclasses.dataclass(frozen=True)
class Permutation(Objective):
    """`loss` in nats a predicted token, and `accuracy`."""

    terms: ClassVar[Mapping[str, float]] = {"loss": 1.0, "accuracy": 0.0}
    batch_features: ClassVar[tuple[str, ...]] = ("targets", "weights")

    needs = "a two_stream model"

    @classmethod
    def serves(cls, model) -> bool:
        return "ranks" in model.inputs

    @classmethod
    def from_config(cls, config, model) -> "Permutation":
        for section in ("model", "evaluate.model"):
            reuse = config[section].to_dict().get("reuse", config.objective.reuse)
            if reuse != config.objective.reuse:
                raise UserError(
                    f"config.{section}.reuse={reuse} differs from config.objective.reuse={config.objective.reuse}. "
                    "Make them equal."
                )
        return cls()

    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None):
        hidden, carried = model(batch, carried, key)
        head = model.run("head_inputs", hidden)
        loss, _, right = cross_entropy(*head, batch["targets"], batch["weights"], accuracy=True)
        return {"loss": loss, "accuracy": right}, carried
