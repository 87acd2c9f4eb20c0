"""Predictions of a task for the examples of a split, and the metrics of a config over them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.corruption.examples import UNLABELLED
from input_pipeline.examples.corpus import ExampleEvaluation
from pretrain.tasks.metrics import Predicted, measure


class Predictions:
    """What a model predicts for each example of a pass, in the order of the data.

    outputs: arrays of each batch by name, as the objective's `evaluate` gives them, rows of padding included.
    """

    def __init__(self, section: Mapping, data: ExampleEvaluation, outputs: Sequence[Mapping[str, np.ndarray]]):
        self.section, self.table = section, data.table
        size, order = data.passes.context.batch_size, data.order
        logits = np.concatenate([np.asarray(one["logits"])[:size] for one in outputs])[: len(order)]
        back = np.argsort(order, kind="stable")
        self.examples, self.logits = order[back], logits[back]
        self.targets = self.table.targets[self.examples]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes; () for numbers."""
        if self.section["kind"] == "choice":
            return tuple(self.section["labels"] or map(str, range(self.section["number"])))
        return tuple(self.section.get("labels", ()))

    def measures(self) -> dict[str, float]:
        """The metrics of `config.objective.metrics`, over the examples with a label."""
        is_number = not self.names
        labelled = np.full(len(self.targets), True) if is_number else self.targets != UNLABELLED
        values = self.logits[:, 0] if is_number else self.logits.argmax(1)
        found = Predicted(values[labelled], self.targets[labelled], self.logits[labelled], self.names)
        return measure(self.section["kind"], self.section["metrics"], found) if labelled.any() else {}

    def rows(self) -> Iterator[dict]:
        """For each example: its number, the record, the label and the prediction by name, and scores."""
        probabilities = softmax(self.logits)
        for place, number in enumerate(self.examples.tolist()):
            row = {"id": int(self.table.numbers[number]), "record": self.table.record(int(self.table.numbers[number]))}
            if not self.names:
                yield row | {"label": float(self.targets[place]), "prediction": float(self.logits[place, 0])}
                continue
            target = int(self.targets[place])
            label = None if target == UNLABELLED else self.names[target]
            scores = dict(zip(self.names, np.round(probabilities[place], 6).tolist(), strict=True))
            best = self.names[int(self.logits[place].argmax())]
            yield row | {"label": label, "prediction": best, "scores": scores}

    def write(self, path: Path) -> None:
        """Writes `rows` as JSON lines."""
        with path.open("w", encoding="utf-8") as file:
            for row in self.rows():
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits [..., C], float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
