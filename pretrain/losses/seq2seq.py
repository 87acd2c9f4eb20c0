"""Losses of encoder-decoders: the cross-entropy of each target token given the input and the tokens before it."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from input_pipeline.corruption import class_names
from pretrain.errors import UserError
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

    def prompts(self, batch: Mapping) -> tuple[np.ndarray, np.ndarray, dict]:
        """The start token, and the encoder's inputs."""
        tokens = batch["tokens"][:, :1]
        return tokens, np.ones(len(tokens), np.int32), {name: batch[name] for name in ("inputs", "input_segments")}


class Denoising(Seq2Seq):
    """BART (Lewis et al. 2019): the whole text. Nothing is decoded: the text of a gap cannot be known."""


class Spans(Seq2Seq):
    """T5 (Raffel et al. 2019): spans after their sentinels; of task pairs, exact matches of decoded targets."""

    decode_metrics = ("exact_match", "sequence_accuracy")


class Translation(Seq2Seq):
    """The original Transformer (Vaswani et al. 2017): decoded translations are compared over the whole corpus."""

    decode_metrics = ("bleu", "exact_match")


OF_CLASSES = ("accuracy", "f1", "macro_f1", "matthews", "invalid")  # metrics of answers that are names of classes


def check_names(section: Mapping) -> None:
    """Raises UserError if metrics of classes have no names to compare answers with."""
    if not class_names(section) and (named := [name for name in section["metrics"] if name in OF_CLASSES]):
        raise UserError(f"config.objective.metrics={named[0]}: needs names of classes. Set config.objective.labels.")


@dataclasses.dataclass(frozen=True)
class TextToText(Seq2Seq):
    """Text to text (Raffel et al. 2019): the loss of each right answer, and metrics of those that are decoded."""

    metrics: tuple[str, ...] = ()
    most_written: int = 0

    @classmethod
    def from_config(cls, config, model):
        section = config.objective
        check_names(section)
        most = section.target_length or config.data.length
        return cls(config.train.z_loss, config.train.label_smoothing, tuple(section.metrics), most)

    @property
    def writes(self) -> bool:
        return bool(self.metrics)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*super().metric_names, *self.metrics)

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        return super().summarize(terms, totals, data) | {"examples": len(data.order)}
