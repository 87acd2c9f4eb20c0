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

    @classmethod
    def from_config(cls, config, model) -> "Permutation":
        if "ranks" not in model.inputs:
            raise UserError(
                "config.objective.kind=permutation predicts in a random order, which config.model.kind="
                f"{config.model.kind} does not take. Choose two_stream, or another config.objective.kind."
            )
        for section in ("model", "evaluate.model"):
            reuse = config[section].to_dict().get("reuse", config.objective.reuse)
            if reuse != config.objective.reuse:
                raise UserError(
                    f"config.{section}.reuse={reuse} differs from config.objective.reuse={config.objective.reuse}: rows"
                    " overlap by as many positions as are remembered. Make them equal."
                )
        if config.objective.both_ways and config.train.batch_size % 2:
            raise UserError(
                f"config.train.batch_size={config.train.batch_size} is odd, and half of the rows read backwards. Make "
                "it even, or set config.objective.both_ways to false."
            )
        return cls()

    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None):
        hidden, carried = model(batch, carried, key)
        hidden, matrix, bias = model.run("head_inputs", hidden)
        loss, _, right = cross_entropy(
            hidden, matrix.astype(hidden.dtype), bias, batch["targets"], batch["weights"], accuracy=True
        )
        return {"loss": loss, "accuracy": right}, carried
