"""Losses of encoder-decoders: the cross-entropy of each target token given the input and the tokens before it."""

import dataclasses
from collections.abc import Mapping

import jax

from pretrain.losses.cross_entropy import cross_entropy
from pretrain.losses.objective import BoundModel, SmoothedObjective


@dataclasses.dataclass(frozen=True)
class Seq2Seq(SmoothedObjective):
    """`loss` in nats a token, and `accuracy` given the right tokens before each."""

    batch_features = ("targets", "weights")

    needs = "an encoder_decoder"

    @classmethod
    def serves(cls, model) -> bool:
        return "inputs" in model.inputs

    @property
    def terms(self) -> Mapping[str, float]:
        return super().terms | {"accuracy": 0.0}

    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None):
        hidden, carried = model(batch, carried, key)
        objective, nll, right = cross_entropy(
            *model.run("head_inputs", hidden),
            batch["targets"],
            batch["weights"],
            z_loss=self.z_loss,
            label_smoothing=self.label_smoothing,
            accuracy=True,
        )
        return self.sums(objective, nll) | {"accuracy": right}, carried

    def prompts(self, batch: Mapping) -> tuple[jax.Array, dict]:
        """The start token, and the encoder's inputs."""
        return batch["tokens"][:, :1], {name: batch[name] for name in ("inputs", "input_segments")}


class Denoising(Seq2Seq):
    """BART (Lewis et al. 2019): the whole text. Nothing is decoded: the text of a gap cannot be known."""


class Spans(Seq2Seq):
    """T5 (Raffel et al. 2019): spans after their sentinels; of task pairs, exact matches of decoded targets."""

    decode_metrics = ("exact_match", "sequence_accuracy")


class Translation(Seq2Seq):
    """The original Transformer (Vaswani et al. 2017): decoded translations are compared over the whole corpus."""

    decode_metrics = ("bleu", "exact_match")
