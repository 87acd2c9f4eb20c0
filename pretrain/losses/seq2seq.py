"""What a decoder writes of what an encoder reads: the cross-entropy of each token, given those before it."""

import dataclasses
from collections.abc import Mapping

import jax

from pretrain.errors import UserError
from pretrain.losses.applied import Applied
from pretrain.losses.base import Smoothed
from pretrain.losses.cross_entropy import cross_entropy


@dataclasses.dataclass(frozen=True)
class TwoTexts(Smoothed):
    """The term `loss`, in nats a token, and the share of tokens that are right given the right ones before them.

    With smoothing or z-loss `loss` only reports, and `objective` is minimised.
    """

    reads = ("targets", "weights")

    @classmethod
    def of(cls, config, model) -> "TwoTexts":
        """The objective of a config."""
        if "inputs" not in model.inputs:
            raise UserError(
                f"config.objective.kind = {config.objective.kind} has a text that is read and one that is written, and "
                f"config.model.kind = {config.model.kind} has one stack; choose an encoder_decoder, or "
                "config.objective.kind = causal"
            )
        return cls(config.train.z_loss, config.train.label_smoothing)

    @property
    def terms(self) -> Mapping[str, float]:
        return super().terms | {"accuracy": 0.0}

    def score(self, model: Applied, batch: Mapping, carried, key: jax.Array | None):
        hidden, carried = model(batch, carried, key)
        hidden, matrix, bias = model.run("head_inputs", hidden)
        objective, nll, right = cross_entropy(
            hidden,
            matrix.astype(hidden.dtype),
            bias,
            batch["targets"],
            batch["weights"],
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
            hits=True,
        )
        return self.losses(objective, nll) | {"accuracy": right}, carried

    def prompts(self, batch: Mapping) -> tuple[jax.Array, dict]:
        """The start token, and the text that is read."""
        return batch["tokens"][:, :1], {name: batch[name] for name in ("inputs", "input_segments")}
