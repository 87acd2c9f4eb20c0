"""Metrics of tasks, by the kinds of objectives and the names that `config.objective.metrics` takes."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pretrain.errors import UserError, lookup
from pretrain.tasks.metrics import answers, classes, tagging, texts


class Predicted(NamedTuple):
    """What a model predicts for N examples, beside what is right.

    predictions, labels: by kind of objective,
        classification, choice: int [N]      regression: float [N]      siamese: cosines, float [N], or classes
        tagging: N sequences of ints         extraction, text: N strings, and for labels N sequences of references
    scores: logits [N, C]; of an extraction that may have no answer [N], which rise as an answer becomes unlikely:
        above `threshold` there is none.
    names: of the classes or tags. embeddings: of siamese, (first texts, second texts), float [N, D] each.
    """

    predictions: Any
    labels: Any
    scores: Any = None
    names: Sequence[str] = ()
    scheme: str = "BIO"  # of tags: one of tagging.SCHEMES
    threshold: float = 0.0
    language: str = ""  # of answers (MLQA) and of texts (BLEU)
    embeddings: Sequence = ()


Metric = Callable[[Predicted], float]


def _plain(*functions: Callable) -> dict[str, Metric]:
    """Metrics of predictions and labels alone, by the names of their functions."""
    return {one.__name__: functools.partial(_of_both, function=one) for one in functions}


def _of_both(found: Predicted, function: Callable) -> float:
    return function(found.predictions, found.labels)


def _retrieval(found: Predicted, order: int) -> float:
    return classes.retrieval(*found.embeddings[::order])


def _span(found: Predicted, key: str, strict: bool = False) -> float:
    sides = found.predictions, found.labels
    # An invalid tag is O.
    names = [*found.names, tagging.OUTSIDE]
    predicted, true = ([[names[tag] for tag in row] for row in side] for side in sides)
    return tagging.span_table(predicted, true, found.scheme if strict else "")["micro"][key]


def _answer(found: Predicted, key: str) -> float:
    if found.scores is None:
        return answers.squad(found.predictions, found.labels)[key]
    return answers.squad_v2(found.predictions, found.labels, found.scores, found.threshold).get(key, 0.0)


def _mlqa(found: Predicted, key: str) -> float:
    tokens = functools.partial(answers.mlqa_tokens, language=found.language)
    return answers.squad(found.predictions, found.labels, tokens)[key]


def _named(found: Predicted, function: Callable) -> float:
    sides = found.predictions, [some[0] for some in found.labels]
    return function(*(classes.to_classes(side, found.names) for side in sides))


def _numeric(found: Predicted, function: Callable) -> float:
    sides = found.predictions, [some[0] for some in found.labels]
    return function(*map(classes.to_numbers, sides))


def _sacrebleu(found: Predicted, name: str) -> float:
    return texts.sacrebleu_score(name, found.predictions, found.labels, found.language)


def _rouge(found: Predicted, name: str) -> float:
    return texts.rouge(name, found.predictions, found.labels)


_part = functools.partial
_OF_CLASSES = (classes.accuracy, classes.f1, classes.macro_f1, classes.matthews)
_OF_NUMBERS = (classes.pearson, classes.spearman)
_V2 = ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "best_exact", "best_exact_thresh", "best_f1")
METRICS: dict[str, dict[str, Metric]] = {
    "classification": _plain(*_OF_CLASSES),
    "choice": _plain(classes.accuracy),
    "regression": _plain(*_OF_NUMBERS),
    "siamese": _plain(*_OF_NUMBERS, classes.accuracy)
    | {"retrieval": _part(_retrieval, order=1), "retrieval_back": _part(_retrieval, order=-1)},
    "tagging": {
        "span_f1": _part(_span, key="f1"),
        "span_precision": _part(_span, key="precision"),
        "span_recall": _part(_span, key="recall"),
        "span_f1_strict": _part(_span, key="f1", strict=True),
        "accuracy": _part(_of_both, function=tagging.word_accuracy),
    },
    "extraction": {name: _part(_answer, key=name) for name in ("exact", "f1", *_V2, "best_f1_thresh")}
    | {f"mlqa_{key}": _part(_mlqa, key=key) for key in ("exact", "f1")},
    "text": _plain(texts.exact_match)
    | {name: _part(_sacrebleu, name=name) for name in ("bleu", "chrf", "chrf++")}
    | {name: _part(_rouge, name=name) for name in ("rouge1", "rouge2", "rougeLsum")}
    | {one.__name__: _part(_named, function=one) for one in (*_OF_CLASSES, classes.invalid)}
    | {one.__name__: _part(_numeric, function=one) for one in _OF_NUMBERS}
    | {f"squad_{key}": _part(_answer, key=key) for key in ("exact", "f1")},
}
METRICS["causal"] = METRICS["text"]


def require(kind: str, names: Iterable[str]) -> None:
    """Checks metrics of a kind of objective before training: their names, and that their packages are installed.

    Errors: UserError.
    """
    table = lookup("config.objective.kind", kind, METRICS)
    for name in names:
        if name not in table:
            raise UserError(f"config.objective.metrics={name}: unknown for {kind}. Choose from: {', '.join(table)}.")
        if module := texts.MODULES.get(name):
            texts.package(module, f"config.objective.metrics={name}")


def measure(kind: str, names: Iterable[str], found: Predicted) -> dict[str, float]:
    """The value of each metric, by name."""
    return {name: float(METRICS[kind][name](found)) for name in names}
