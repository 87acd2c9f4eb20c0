"""A model bound to its parameters, and the base classes of objectives."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.transformer.task_head import Task

STATES = "states"  # named scope of everything that makes hidden states
HEAD = 1 << 20  # folded into the key of dropout for heads of tasks
TEACHER = "teacher"  # named scope of what has no backward pass


@dataclasses.dataclass(frozen=True)
class BoundModel:
    """A model with its parameters, as objectives call it.

    `inputs` are the features of a batch that the model takes; `frozen` are a teacher's parameters. Under pmap
    `axis_name` is the axis of the devices, each of which has its part of the batch.
    """

    model: nn.Module
    params: Any
    inputs: tuple[str, ...]
    frozen: Any = None
    axis_name: str | None = None

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

    def predict(self, hidden, places, row: jax.Array, key: jax.Array | None, spans: Mapping | None = None):
        """The predictions of the head of a task, as `task_logits` of models; a `key` turns dropout on."""
        # Folded, so that the head and the model draw different numbers.
        rngs = {} if key is None else {"dropout": jax.random.fold_in(key, HEAD)}
        return self.model.apply(
            {"params": self.params}, hidden, places, row, key is not None, spans, rngs=rngs, method="task_logits"
        )

    def run(self, method: str, *arguments):
        """Call another method of the model."""
        return self.model.apply({"params": self.params}, *arguments, method=method)


class Objective(abc.ABC):
    """Named terms of a batch, and what is reported of them.

    The defaults are those of an objective that scores a part of a text and decodes nothing. One that decodes has
    `prompts(batch)`: (ids [B, P] that begin the output, their number in each row [B], encoder features).
    """

    needs: str  # the kind of model that it `serves`, for errors
    terms: Mapping[str, float]  # name -> weight; a weight of 0 only reports
    batch_features: tuple[str, ...]  # features of a batch that it reads besides the model's inputs
    ratios: Mapping[str, tuple[str, str]] = {}  # name -> numerator and denominator term; reported instead of the two
    bits_metric: str | None = None  # the name of its bits a unit of text; None where it predicts a part of a text
    metrics: tuple[str, ...] = ()  # metrics of `outputs` over a whole split (`pretrain.tasks`); larger is better
    derived_inputs: tuple[str, ...] = ()  # inputs of the model that it makes of others, which batches lack
    writes: bool = False  # whether `metrics` are those of decoded answers
    most_written: int = 0  # tokens of an answer that is decoded; 0: as many as a row of targets holds
    decode_metrics: tuple[str, ...] = ()  # metrics of decoded text (`pretrain.evaluation.decoded`)
    supports_smoothing = False  # whether config.train.z_loss and .label_smoothing apply
    distill_mask: str | None = None  # the feature [B, T] above 0 where a teacher's output is compared
    teacher: nn.Module | None = None  # whose parameters are `model.frozen`

    @classmethod
    def serves(cls, model: nn.Module) -> bool:
        """Whether it can train the model."""
        return True

    @classmethod
    def of_section(cls, section: Mapping) -> type["Objective"]:
        """The class for `config.objective`: a subclass where its keys ask for another loss."""
        return cls

    @classmethod
    def task(cls, section: Mapping) -> Task | None:
        """The head that it needs in a model, from `config.objective`; None: those of pretraining."""
        return None

    @classmethod
    def from_config(cls, config, model: nn.Module) -> "Objective":
        """Build the objective of a config. Errors: UserError for keys that do not fit each other."""
        return cls()

    @abc.abstractmethod
    def score(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None) -> tuple[dict, Any]:
        """({name of a term: its sum over the batch}, recurrent state); no `key` means no dropout."""

    def evaluate(self, model: BoundModel, batch: Mapping, carried) -> tuple[dict, dict, Any]:
        """(sums of the terms, outputs [B, ...] for each row by name, recurrent state), without dropout."""
        sums, carried = self.score(model, batch, carried, None)
        return sums, {}, carried

    def denominators(self, batch: Mapping) -> dict[str, jax.Array]:
        """Divisors of the terms: here the weight of the predicted tokens.

        A function of the batch alone, so it is summed over the parts of a batch and over devices before anything is
        differentiated.
        """
        return dict.fromkeys(self.terms, jnp.sum(batch["weights"]))

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """Further metrics of an evaluation: here perplexity and the number of predicted tokens."""
        return {"perplexity": perplexity(terms["loss"]), "tokens": int(totals["counts"]["loss"])}

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Metrics of an evaluation that are shown."""
        return (*self.terms, "perplexity")

    @property
    def reported_terms(self) -> tuple[str, ...]:
        """The terms that are not inside of a ratio."""
        return tuple(name for name in self.terms if not any(name in ratio for ratio in self.ratios.values()))


@dataclasses.dataclass(frozen=True)
class SmoothedObjective(Objective):
    """The term `loss`, in nats a token. With smoothing or z-loss it only reports, and `objective` is minimised."""

    z_loss: float
    label_smoothing: float

    supports_smoothing = True

    @classmethod
    def from_config(cls, config, model):
        return cls(config.train.z_loss, config.train.label_smoothing)

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
