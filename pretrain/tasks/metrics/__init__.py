"""Metrics of tasks, by the names that `config.objective.metrics` takes."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pretrain.errors import UserError
from pretrain.tasks.metrics import answers, classes, tagging, texts


class Predicted(NamedTuple):
    """What a model predicts for N examples, beside what is right.

    predictions, labels: by kind of metric,
        classes: int [N]            numbers: float [N]          embeddings: float [N, D], of pairs of texts
        tags: N sequences of ints   answers, texts: N strings, and for labels N sequences of references
    scores: logits [N, C]; for `answers` a score [N] that rises as an answer becomes unlikely.
    names: of the classes or tags.
    """

    predictions: Any
    labels: Any
    scores: Any = None
    names: Sequence[str] = ()
    scheme: str = "IOB2"  # of tags: one of tagging.SCHEMES
    language: str = ""  # of answers and texts


Metric = Callable[[Predicted], float]


def _plain(function: Callable) -> Metric:
    return lambda found: function(found.predictions, found.labels)


def _words(found: Predicted, rows: Sequence[Sequence[int]]) -> list[list[str]]:
    """Names of tags; an invalid one is O."""
    return [[found.names[tag] if tag >= 0 else tagging.OUTSIDE for tag in row] for row in rows]


def _span(found: Predicted, key: str, strict: bool) -> float:
    predicted, true = _words(found, found.predictions), _words(found, found.labels)
    return tagging.span_table(predicted, true, found.scheme if strict else "")["micro"][key]


def _best_answer(found: Predicted, score: Callable, mlqa: bool = False) -> float:
    tokens = functools.partial(answers.mlqa_tokens, language=found.language) if mlqa else answers.squad_tokens
    return answers.mean_of_best(score, found.predictions, found.labels, tokens)


def _squad_v2(found: Predicted, key: str) -> float:
    return answers.squad_v2(found.predictions, found.labels, found.scores).get(key, 0.0)


def _sacrebleu(found: Predicted, name: str) -> float:
    return texts.sacrebleu_score(name, found.predictions, found.labels, found.language)


def _rouge(found: Predicted, name: str) -> float:
    return texts.rouge(name, found.predictions, found.labels)


def _table(function: Callable, **cases: dict) -> dict[str, Metric]:
    return {name: functools.partial(function, **options) for name, options in cases.items()}


OF_CLASSES = ("accuracy", "f1", "macro_f1", "matthews", "invalid")
KINDS: dict[str, dict[str, Metric]] = {
    "classes": {name: _plain(getattr(classes, name)) for name in OF_CLASSES},
    "numbers": {"pearson": _plain(classes.pearson), "spearman": _plain(classes.spearman)},
    "embeddings": {
        "retrieval": _plain(classes.retrieval),
        "retrieval_back": lambda found: classes.retrieval(found.labels, found.predictions),
    },
    "tags": _table(
        _span,
        span_f1=dict(key="f1", strict=False),
        span_precision=dict(key="precision", strict=False),
        span_recall=dict(key="recall", strict=False),
        strict_span_f1=dict(key="f1", strict=True),
    )
    | {"word_accuracy": _plain(tagging.word_accuracy)},
    "answers": _table(
        _best_answer,
        squad_exact_match=dict(score=answers.exact_match),
        squad_f1=dict(score=answers.token_f1),
        mlqa_exact_match=dict(score=answers.exact_match, mlqa=True),
        mlqa_f1=dict(score=answers.token_f1, mlqa=True),
    )
    | _table(
        _squad_v2,
        squad_v2_exact_match=dict(key="exact"),
        squad_v2_f1=dict(key="f1"),
        squad_v2_answered_f1=dict(key="HasAns_f1"),
        squad_v2_unanswered_f1=dict(key="NoAns_f1"),
        squad_v2_best_exact_match=dict(key="best_exact"),
        squad_v2_best_f1=dict(key="best_f1"),
    ),
    "texts": {
        "exact_match": _plain(texts.exact_match),
        "token_f1": functools.partial(_best_answer, score=answers.token_f1),
    }
    | {name: functools.partial(_sacrebleu, name=name) for name in ("bleu", "chrf", "chrf++")}
    | {name: functools.partial(_rouge, name=name) for name in ("rouge1", "rouge2", "rougeLsum")},
}
METRICS: dict[str, Metric] = {name: metric for some in KINDS.values() for name, metric in some.items()}


def require(names: Iterable[str], *kinds: str) -> None:
    """Checks metrics before training: that they exist, fit predictions of `kinds` (all), and have their packages.

    Errors: UserError.
    """
    choices = [name for kind in kinds or KINDS for name in KINDS[kind]]
    for name in names:
        if name not in choices:
            problem = "does not fit this objective" if name in METRICS else "is unknown"
            raise UserError(f"objective.metrics={name}: {problem}. Choose from: {', '.join(choices)}.")
        for module, prefixes in (("sacrebleu", ("bleu", "chrf")), ("rouge_score", ("rouge",))):
            if name.startswith(prefixes):
                texts.package(module, name)


def measure(names: Iterable[str], found: Predicted) -> dict[str, float]:
    """The value of each metric, by name."""
    return {name: float(np.float64(METRICS[name](found))) for name in names}
