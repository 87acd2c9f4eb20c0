"""Predictions of a task for the examples of a split, and the metrics of a config over them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.corruption.examples import UNLABELLED
from input_pipeline.examples.corpus import ExampleEvaluation
from pretrain.tasks.metrics import Predicted, measure
from pretrain.tasks.metrics.tagging import OUTSIDE


class Predictions:
    """What a model predicts for each example of a pass, in the order of the data.

    outputs: arrays of each batch by name, as the objective's `evaluate` gives them, rows of padding included.
    """

    def __init__(self, section: Mapping, data: ExampleEvaluation, outputs: Sequence[Mapping[str, np.ndarray]]):
        self.section, self.table, self.objective = section, data.table, data.passes.context.objective
        size, order = data.passes.context.batch_size, data.order
        # Rows came in order of length: `back` puts them in the order of the data.
        back = np.argsort(order, kind="stable")
        self.examples, self.targets = order[back], self.table.targets[order[back]]
        # Rows of a batch may be longer than those of another.
        rows = {name: [row for one in outputs for row in np.asarray(one[name])[:size]] for name in outputs[0]}
        self.outputs = {name: [found[place] for place in back.tolist()] for name, found in rows.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes; () for numbers."""
        if self.section["kind"] == "choice":
            return tuple(self.section["labels"] or map(str, range(self.section["number"])))
        return tuple(self.section.get("labels", ()))

    def measures(self) -> dict[str, float]:
        """The metrics of `config.objective.metrics`, over the examples with a label."""
        labelled = np.flatnonzero(self.targets != UNLABELLED) if self.names else np.arange(len(self.targets))
        if not len(labelled):
            return {}
        return measure(self.section["kind"], self.section["metrics"], self.found(labelled))

    def found(self, wanted: np.ndarray) -> Predicted:
        """The predictions for the examples at the places `wanted`, as metrics take them."""
        logits = np.stack(self.outputs["logits"])[wanted]
        values = logits.argmax(1) if self.names else logits[:, 0]
        return Predicted(values, self.targets[wanted], logits, self.names)

    def rows(self) -> Iterator[dict]:
        """For each example: the number of its record, the record, the label and the prediction by name, and scores."""
        for place, number in enumerate(self.table.numbers[self.examples].tolist()):
            yield {"id": number, "record": self.table.record(number)} | self.row(place)

    def row(self, place: int) -> dict:
        """Label, prediction and scores of the example at a place."""
        target, logits = self.targets[place], self.outputs["logits"][place]
        if not self.names:
            return {"label": float(target), "prediction": float(logits[0])}
        scores = dict(zip(self.names, np.round(softmax(logits), 6).tolist(), strict=True))
        return {"label": self.name(target), "prediction": self.names[int(logits.argmax())], "scores": scores}

    def name(self, target: float) -> str | None:
        """The name of a class; None for UNLABELLED."""
        return None if target == UNLABELLED else self.names[int(target)]

    def write(self, path: Path) -> None:
        """Writes `rows` as JSON lines."""
        with path.open("w", encoding="utf-8") as file:
            for row in self.rows():
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


class Tags(Predictions):
    """A tag for each word; words that a row has no room for are O."""

    def words(self, place: int) -> tuple[list[int], list[int]]:
        """Numbers of the (predicted, true) tags of the sentence at a place; none are true without labels."""
        example, tags = self.table[int(self.examples[place])], self.outputs["tags"][place]
        places, there = self.objective.first_tokens(example, len(tags))
        predicted = np.full(len(there), self.names.index(OUTSIDE) if OUTSIDE in self.names else 0)
        # The prediction of a word is that of its first token (Devlin et al. 2018, section 5.3).
        predicted[there] = tags[places]
        true = example.parts[2].tolist()
        return predicted.tolist(), [] if UNLABELLED in true else true

    def found(self, wanted: np.ndarray) -> Predicted:
        predicted, true = zip(*map(self.words, wanted.tolist()), strict=True)
        return Predicted(predicted, true, names=self.names, scheme=self.section["scheme"])

    def row(self, place: int) -> dict:
        predicted, true = ([self.names[tag] for tag in tags] for tags in self.words(place))
        return {"label": true or None, "prediction": predicted}


OF_KIND = {"tagging": Tags}


def predictions(section: Mapping, data: ExampleEvaluation, outputs: Sequence[Mapping[str, np.ndarray]]) -> Predictions:
    """The predictions of the objective of `config.objective`, as `Predictions` takes its arguments."""
    return OF_KIND.get(section["kind"], Predictions)(section, data, outputs)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits [..., C], float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
