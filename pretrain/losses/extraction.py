"""Loss of extracted answers: where an answer begins and where it ends, each one token of a row."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from input_pipeline.corruption.extraction import BEGINS
from models.transformer.task_head import Task
from pretrain.errors import UserError
from pretrain.losses.examples import ExampleObjective
from pretrain.losses.nbest import LOWEST, best_spans, spans_of_starts
from pretrain.losses.objective import BoundModel

OF_NO_ANSWER = ("HasAns", "NoAns", "best")  # begin the names of SQuAD 2.0's metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extraction(ExampleObjective):
    """`loss` in nats a token, the mean of an answer's first and last one over all tokens of a row.

    `outputs`: the best spans of each row as `best_spans` gives them, in tokens of the window, and `no_answer` [B], the
    score of none.
    """

    width: int  # tokens of the longest answer
    number: int  # spans that are kept of each row

    batch_features = ("labels", "weights", "segments", "context", "nowhere")
    unit = "token"

    @classmethod
    def of_section(cls, section: Mapping) -> type["Extraction"]:
        return JointExtraction if section["joint"] else cls

    @classmethod
    def task(cls, section: Mapping) -> Task:
        return Task(cls.unit, 2, tuple(section["head"]), joint=section["joint"])

    @classmethod
    def from_config(cls, config, model) -> "Extraction":
        section = config.objective
        for name in section.metrics:
            if name.startswith(OF_NO_ANSWER) and not section.no_answer:
                raise UserError(f"config.objective.metrics={name}: needs config.objective.no_answer=True. Set it.")
        return cls(metrics=tuple(section.metrics), width=section.max_answer, number=section.best, **cls.more(section))

    @classmethod
    def more(cls, section: Mapping) -> dict:
        """Fields of a subclass."""
        return {}

    def evaluate(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None = None):
        logits, carried = self.logits(model, batch, carried, key)
        losses = self.losses(logits, batch["labels"])
        start, end = (jax.lax.stop_gradient(logits[..., one]) for one in range(2))
        context = batch["context"]
        scores, first, last = best_spans(start, end, context == BEGINS, context > 0, self.width, self.number)
        rows = jnp.arange(len(start))
        # The sum of two logits, as a span's: the two are compared (Devlin et al. 2018, section 4.3).
        no_answer = start[rows, batch["nowhere"]] + end[rows, batch["nowhere"]]
        begin = jnp.argmax(context > 0, axis=1, keepdims=True)
        outputs = {"scores": scores, "first": first - begin, "last": last - begin, "no_answer": no_answer}
        # Training drops the outputs, and the compiler all that only they need.
        return {"loss": jnp.sum(batch["weights"] * losses)}, outputs, carried

    def logits(self, model: BoundModel, batch: Mapping, carried, key):
        """([B, T, 2] float32 of an answer's first and last token, recurrent state); LOWEST at padding."""
        hidden, carried = self.states(model, batch, carried, key)
        logits = model.predict(hidden, None, batch["row"], key)
        # Rows of one text score alike in batches of any length.
        return jnp.where(batch["segments"][..., None] > 0, logits, LOWEST), carried

    def losses(self, logits, labels):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), labels[:, None], axis=1)[:, 0]
        return -jnp.mean(chosen, axis=-1)

    def summarize(self, terms: Mapping[str, float], totals: Mapping, data) -> dict:
        """The number of questions."""
        return {"examples": len(np.unique(data.table.numbers[data.order]))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointExtraction(Extraction):
    """An answer whose last token is predicted given the first one (XLNet's released head, Yang et al. 2019).

    `loss` adds half the nats of whether a row has an answer, if questions may have none; `no_answer` is then their
    log-odds. Spans have the sum of two log-probabilities.
    """

    beams: int  # starts that are tried of each row
    no_answer: bool

    @classmethod
    def more(cls, section: Mapping) -> dict:
        return {"beams": section["joint_starts"], "no_answer": section["no_answer"]}

    def evaluate(self, model: BoundModel, batch: Mapping, carried, key: jax.Array | None = None):
        hidden, carried = self.states(model, batch, carried, key)
        context, nowhere, right = batch["context"], batch["nowhere"], batch["labels"]
        spans = {"real": batch["segments"] > 0, "begins": context == BEGINS, "nowhere": nowhere}
        start, _, end, none = model.predict(hidden, None, batch["row"], key, spans | {"starts": right[:, :1]})
        sides = [
            jnp.take_along_axis(jax.nn.log_softmax(logits), right[:, one, None], axis=1)[:, 0]
            for one, logits in enumerate((start, end[:, 0]))
        ]
        losses = -(sides[0] + sides[1]) / 2
        if self.no_answer:
            impossible = right[:, 0] == nowhere
            losses += 0.5 * jnp.logaddexp(0.0, jnp.where(impossible, -none, none))
        searched = spans | {"starts": None, "number": self.beams}
        start, starts, end, none = jax.lax.stop_gradient(model.predict(hidden, None, batch["row"], key, searched))
        logits = jax.nn.log_softmax(start), starts, jax.nn.log_softmax(end)
        scores, first, last = spans_of_starts(*logits, context > 0, self.width, self.number)
        begin = jnp.argmax(context > 0, axis=1, keepdims=True)
        outputs = {"scores": scores, "first": first - begin, "last": last - begin, "no_answer": none}
        return {"loss": jnp.sum(batch["weights"] * losses)}, outputs, carried
