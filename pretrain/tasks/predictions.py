"""Predictions of a task for the examples of a split, and the metrics of a config over them."""

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.corruption import class_names
from input_pipeline.corruption.examples import UNLABELLED, text_of
from input_pipeline.corruption.extraction import FIRST_TOKEN, answers_of
from input_pipeline.examples.corpus import ExampleEvaluation
from pretrain.decoding.beam_search import NOTHING
from pretrain.losses.nbest import LOWEST
from pretrain.tasks.metrics import Predicted, classes, measure, texts
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
        parts = {name: [np.asarray(one[name])[:size] for one in outputs] for name in outputs[0]}
        self.outputs = {name: rows_in_order(found, back) for name, found in parts.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes; () for numbers."""
        if self.section["kind"] == "choice":
            return tuple(self.section["labels"] or map(str, range(self.section["number"])))
        return tuple(self.section.get("labels", ()))

    def measures(self) -> dict[str, float]:
        """The metrics of `config.objective.metrics`, over the examples with a label."""
        labelled = np.flatnonzero(self.targets != UNLABELLED)
        if not len(labelled):
            return {}
        return measure(self.section["kind"], self.section["metrics"], self.found(labelled))

    def signatures(self) -> dict[str, str]:
        """How metrics were computed, where they must be quoted with it."""
        return {}

    def found(self, wanted: np.ndarray) -> Predicted:
        """The predictions for the examples at the places `wanted`, as metrics take them."""
        logits = np.stack(self.outputs["logits"])[wanted]
        values = classes.choose(logits) if self.names else logits[:, 0]
        return Predicted(values, self.targets[wanted], logits, self.names)

    def rows(self) -> Iterator[dict]:
        """For each example: the number of its record, the record, the label and the prediction by name, and scores."""
        for place, number in enumerate(self.table.numbers[self.examples].tolist()):
            yield {"id": number, "record": self.table.record(number)} | self.row(place)

    def row(self, place: int) -> dict:
        """Label, prediction and scores of the example at a place."""
        target, logits = self.targets[place], self.outputs["logits"][place]
        if not self.names:
            return {"label": self.name(target), "prediction": float(logits[0])}
        scores = dict(zip(self.names, np.round(softmax(logits), 6).tolist(), strict=True))
        return {"label": self.name(target), "prediction": self.names[int(logits.argmax())], "scores": scores}

    def name(self, target: float) -> str | float | None:
        """The name of a class, or a number; None for UNLABELLED."""
        if target == UNLABELLED:
            return None
        return self.names[int(target)] if self.names else float(target)

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


class ExtractedAnswers(Predictions):
    """An answer to each question: the best span of all its windows, cut from its text by characters."""

    def __init__(self, section: Mapping, data: ExampleEvaluation, outputs: Sequence[Mapping[str, np.ndarray]]):
        super().__init__(section, data, outputs)
        # Windows of a question follow each other in the order of the data.
        _, first, question = np.unique(self.table.numbers[self.examples], return_index=True, return_inverse=True)
        sizes = [len(scores) for scores in self.outputs["scores"]]
        scores = np.concatenate(self.outputs["scores"]).astype(np.float64)
        begin = self.table.ids[self.table.ends[self.examples, 1] + FIRST_TOKEN]
        spans = [np.concatenate(self.outputs[name]) + np.repeat(begin, sizes) for name in ("first", "last")]
        of_span = np.repeat(question, sizes)
        order = np.lexsort((-scores, of_span))
        # Spans of a question from bounds[q] on, best first: (first, last token in the text), and scores.
        self.spans, self.scores = np.stack(spans, axis=1)[order], scores[order]
        self.bounds = np.searchsorted(of_span[order], np.arange(len(first) + 1))
        # The window that is least sure of no answer decides.
        no_answer = np.minimum.reduceat(np.array(self.outputs["no_answer"], np.float64), first)
        # The log-odds of a joint head are a score by themselves.
        self.no_answer = no_answer if self.section["joint"] else no_answer - self.scores[self.bounds[:-1]]
        self.examples, self.targets = self.examples[first], self.targets[first]
        self._parsed: tuple[int, dict] = -1, {}

    def measures(self) -> dict[str, float]:
        labelled = np.flatnonzero(self.targets != UNLABELLED)
        return measure("extraction", self.section["metrics"], self.found(labelled)) if len(labelled) else {}

    def found(self, wanted: np.ndarray) -> Predicted:
        pairs = [(next(self.best(place), ("", 0.0))[0], self.references(place)) for place in wanted.tolist()]
        predicted, references = zip(*pairs, strict=True)
        scores = self.no_answer[wanted] if self.section["no_answer"] else None
        threshold, language = self.section["threshold"], self.section["language"]
        return Predicted(predicted, references, scores, threshold=threshold, language=language)

    def record(self, place: int) -> dict:
        """The record of the question at a place; the last one is kept."""
        if self._parsed[0] != place:
            self._parsed = place, self.table.record(int(self.table.numbers[self.examples[place]]))
        return self._parsed[1]

    def references(self, place: int) -> list[str]:
        """The right answers to the question at a place."""
        return [text for text, _ in answers_of(self.record(place), self.section["answers"]) or ()]

    def best(self, place: int) -> Iterator[tuple[str, float]]:
        """Different answers to the question at a place with their scores, best first."""
        text = text_of(self.record(place), self.section["texts"][1])
        _, starts, ends = self.objective.encode(text)
        known = {""}
        for span in range(self.bounds[place], self.bounds[place + 1]):
            first, last = self.spans[span]
            if self.scores[span] < LOWEST / 2:  # a row of fewer spans
                return
            answer = text[starts[first] : ends[last]]
            if answer not in known:
                known.add(answer)
                yield answer, round(float(self.scores[span]), 4)

    def row(self, place: int) -> dict:
        best = list(itertools.islice(self.best(place), self.section["best"]))
        answers = [{"text": text, "score": score} for text, score in best]
        label = None if self.targets[place] == UNLABELLED else self.references(place)
        found = {"label": label, "prediction": best[0][0] if best else "", "answers": answers}
        if not self.section["no_answer"]:
            return found
        score = round(float(self.no_answer[place]), 4)
        return found | ({"prediction": ""} if score > self.section["threshold"] else {}) | {"no_answer": score}


class WrittenAnswers(Predictions):
    """A decoded answer for each example, without what follows `objective.stop` and white space around it."""

    @property
    def names(self) -> tuple[str, ...]:
        return class_names(self.section)

    @functools.cached_property
    def answers(self) -> list[str]:
        """The answers, in the order of the data."""
        tokenizer, stop = self.objective.tokenizer, self.section["stop"]
        found = []
        for row in self.outputs["ids"]:
            # The end is no text; some tokenizers would write it.
            ids = row[(row != NOTHING) & (row != tokenizer.end_id)]
            text = tokenizer.decode(ids)
            found.append((text.partition(stop)[0] if stop else text).strip())
        return found

    # Right answers are read from the record again: tables keep only the first one, as ids.
    def right(self, place: int) -> list[str]:
        """The right answers of the example at a place."""
        return self.objective.right_answers(self.table.record(int(self.table.numbers[self.examples[place]])))

    def found(self, wanted: np.ndarray) -> Predicted:
        right = [self.right(place) for place in wanted.tolist()]
        answers = [self.answers[place] for place in wanted.tolist()]
        return Predicted(answers, right, names=self.names, language=self.section["language"])

    def signatures(self) -> dict[str, str]:
        found = self.found(np.flatnonzero(self.targets != UNLABELLED))
        chosen = [name for name in self.section["metrics"] if texts.MODULES.get(name) == "sacrebleu"]
        return {f"{name}_signature": texts.signature(name, *found[:2], found.language) for name in chosen}

    def row(self, place: int) -> dict:
        right = self.right(place)
        return {"label": right if len(right) > 1 else "".join(right) or None, "prediction": self.answers[place]}


class Similarities(Predictions):
    """The class of two texts, or the cosine of their embeddings."""

    def found(self, wanted: np.ndarray) -> Predicted:
        embeddings = np.stack(self.outputs["embeddings"])[wanted].swapaxes(0, 1)
        if self.objective.classes:
            return super().found(wanted)._replace(embeddings=embeddings)
        return Predicted(cosines(*embeddings), self.targets[wanted], embeddings=embeddings)

    @property
    def names(self) -> tuple[str, ...]:
        return self.objective.classes

    def row(self, place: int) -> dict:
        if self.names:
            return super().row(place)
        return {
            "label": self.name(self.targets[place]),
            "prediction": float(cosines(*self.outputs["embeddings"][place])),
        }


OF_KIND = {
    "tagging": Tags,
    "extraction": ExtractedAnswers,
    "text": WrittenAnswers,
    "causal": WrittenAnswers,
    "siamese": Similarities,
}


def predictions(section: Mapping, data: ExampleEvaluation, outputs: Sequence[Mapping[str, np.ndarray]]) -> Predictions:
    """The predictions of the objective of `config.objective`, as `Predictions` takes its arguments."""
    return OF_KIND.get(section["kind"], Predictions)(section, data, outputs)


def cosines(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Cosines of vectors [..., D], float64."""
    u, v = u.astype(np.float64), v.astype(np.float64)
    return (u * v).sum(-1) / np.maximum(np.linalg.norm(u, axis=-1) * np.linalg.norm(v, axis=-1), 1e-12)


def rows_in_order(parts: Sequence[np.ndarray], order: np.ndarray) -> Sequence[np.ndarray]:
    """The rows of several arrays in an order: an array, or a list if rows of one are longer than those of another."""
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)[order]
    rows = list(itertools.chain.from_iterable(parts))
    return [rows[place] for place in order.tolist()]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits [..., C], float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
