"""Losses of sentence embeddings: two texts are read by one model, each by itself, and compared."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from models.transformer.task_head import Task
from pretrain.errors import UserError
from pretrain.losses.examples import ExampleObjective, as_rows
from pretrain.losses.objective import BoundModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Siamese(ExampleObjective):
    """A loss for each pair of embeddings u, v [B, D], means of the hidden states of all tokens of a text.

    "cosine": (cos(u, v) - label / highest)^2. "softmax": nats, over the classes, of a linear map of (u, v, |u - v|), as
    on NLI (Reimers and Gurevych 2019, section 3). "ranking": nats of the own v among those of the whole batch, by
    scale * cos(u, v) (Henderson et al. 2017, section 4.4).
    """

    loss: str
    highest: float
    scale: float

    @classmethod
    def from_config(cls, config, model) -> "Siamese":
        section = config.objective
        if section.loss == "ranking" and (unread := {"spearman", "pearson"} & {*section.metrics}):
            raise UserError(
                f"config.objective.metrics={min(unread)}: objective.loss=ranking reads no label. Choose retrieval."
            )
        if section.loss == "ranking" and config.train.accumulate > 1:
            raise UserError(
                f"config.train.accumulate={config.train.accumulate}: each part would have its own negatives "
                "(objective.loss=ranking). Set it to 1."
            )
        return cls(metrics=tuple(section.metrics), loss=section.loss, highest=section.highest, scale=section.scale)

    @classmethod
    def task(cls, section: Mapping) -> Task:
        return Task("pair", len(section["labels"]) if section["loss"] == "softmax" else 0, steps=())

    def evaluate(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None = None):
        rows, labels = as_rows(batch), batch["labels"]
        hidden, carried = self.states(model, rows, carried, key)
        embeddings = mean_pool(hidden, rows["segments"]).reshape(*batch["tokens"].shape[:2], -1)
        u, v = embeddings[:, 0], embeddings[:, 1]
        outputs = {"embeddings": embeddings}
        if self.loss == "softmax":
            features = jnp.concatenate([u, v, jnp.abs(u - v)], axis=-1)
            outputs["logits"] = model.predict(features, None, batch["row"], key)
            losses = self.losses(outputs["logits"], labels.astype(jnp.int32))
        elif self.loss == "ranking":
            losses = self.losses(*self.similarities(u, v, batch["weights"], model.axis_name))
        else:
            cosines = jnp.sum(normalized(u) * normalized(v), axis=-1)
            losses = jnp.square(cosines - labels / self.highest)
        return {"loss": jnp.sum(batch["weights"] * losses)}, outputs, carried

    def similarities(self, u: jax.Array, v: jax.Array, weights: jax.Array, axis_name: str | None):
        """(scaled cosines [B, all rows of the batch], the column of each row's own v)."""
        columns, first = jnp.arange(len(u)), 0
        # Under jit `v` is the whole batch already, and XLA gathers it; pmap sees one device's rows.
        if axis_name:
            first = jax.lax.axis_index(axis_name) * len(u)
            v, weights = jax.lax.all_gather((v, weights), axis_name, tiled=True)
        # Full float32 products: two cosines may differ in their last digits alone.
        scores = self.scale * jnp.matmul(normalized(u), normalized(v).T, precision="highest")
        # Rows of padding are no candidates.
        return jnp.where(weights[None] > 0, scores, jnp.finfo(jnp.float32).min), columns + first

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def mean_pool(hidden: jax.Array, segments: jax.Array) -> jax.Array:
    """The mean of the hidden states [B, T, D] of a row's tokens, float32 [B, D]; 0 for a row of padding."""
    # Special tokens count, as in the released models; a mean in bfloat16 would lose digits of long rows.
    real = (segments > 0)[..., None].astype(jnp.float32)
    return jnp.sum(hidden * real, axis=1) / jnp.maximum(jnp.sum(real, axis=1), 1)


def normalized(x: jax.Array) -> jax.Array:
    """Vectors [..., D] of length 1; of zeros, zeros, whose gradient is finite."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), 1e-24))
