"""Permutation language modelling (Yang et al. 2019): the cross-entropy of the places that are predicted."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax

from pretrain.errors import UserError
from pretrain.losses.applied import Applied
from pretrain.losses.base import Objective
from pretrain.losses.cross_entropy import cross_entropy


@dataclasses.dataclass(frozen=True)
class Permutation(Objective):
    """The term `loss`, in nats a predicted token, and the share of them that are right."""

    terms: ClassVar[Mapping[str, float]] = {"loss": 1.0, "accuracy": 0.0}
    reads: ClassVar[tuple[str, ...]] = ("targets", "weights")

    @classmethod
    def of(cls, config, model) -> "Permutation":
        """The objective of a config."""
        if "ranks" not in model.inputs:
            raise UserError(
                "config.objective.kind = permutation predicts places in a random order, which config.model.kind = "
                f"{config.model.kind} does not take; choose two_stream, or another config.objective.kind"
            )
        for section in ("model", "evaluate.model"):
            reuse = config[section].to_dict().get("reuse", config.objective.reuse)
            if reuse != config.objective.reuse:
                raise UserError(
                    f"config.{section}.reuse = {reuse} positions of a row are remembered, and the next row begins "
                    f"behind config.objective.reuse = {config.objective.reuse}; make them the same"
                )
        if config.objective.both_ways and config.train.batch_size % 2:
            raise UserError(
                f"config.train.batch_size = {config.train.batch_size} lanes cannot be halved into those that read "
                "forwards and backwards; make it even, or set config.objective.both_ways to false"
            )
        return cls()

    def score(self, model: Applied, batch: Mapping, carried, key: jax.Array | None):
        hidden, carried = model(batch, carried, key)
        hidden, matrix, bias = model.run("head_inputs", hidden)
        loss, _, right = cross_entropy(
            hidden, matrix.astype(hidden.dtype), bias, batch["targets"], batch["weights"], hits=True
        )
        return {"loss": loss, "accuracy": right}, carried
