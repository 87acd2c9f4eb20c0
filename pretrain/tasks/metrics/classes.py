"""Metrics of classes, numbers, choices and embeddings, as GLUE and XTREME define them.

All are fractions. A prediction of INVALID is of no class: it is counted, and wrong.
"""

import math
from collections.abc import Sequence

import numpy as np

INVALID = -1
ROWS = 1024  # of a matrix of similarities that are computed at a time


def accuracy(predictions: Sequence, labels: Sequence) -> float:
    """Share of predictions that equal the label."""
    return float(np.mean(np.asarray(predictions) == np.asarray(labels)))


def invalid(predictions: Sequence, labels: Sequence) -> float:
    """Share of predictions that are of no class."""
    return float(np.mean(np.asarray(predictions) == INVALID))


def f1(predictions: Sequence, labels: Sequence, positive: int = 1) -> float:
    """F1 of one class (MRPC, QQP: class 1); 0 if the class is neither predicted nor a label."""
    predicted, true = np.asarray(predictions) == positive, np.asarray(labels) == positive
    return ratio(2 * int((predicted & true).sum()), int(predicted.sum()) + int(true.sum()))


def macro_f1(predictions: Sequence, labels: Sequence) -> float:
    """Mean F1 of all classes that are predicted or a label."""
    classes = set(np.asarray(predictions).tolist()) | set(np.asarray(labels).tolist())
    return float(np.mean([f1(predictions, labels, one) for one in sorted(classes - {INVALID})]))


def matthews(predictions: Sequence, labels: Sequence) -> float:
    """Matthews' correlation (CoLA), of any number of classes (Gorodkin 2004); 0 if one side has a single class."""
    predicted, true = np.asarray(predictions), np.asarray(labels)
    classes = np.union1d(predicted, true)
    of_predicted, of_true = predicted == classes[:, None], true == classes[:, None]
    total, p, t = len(true), of_predicted.sum(1).astype(float), of_true.sum(1).astype(float)
    covariance = float((of_predicted & of_true).sum()) * total - p @ t
    # Both are exact integers, whose product would overflow int64 beyond a few hundred million examples.
    spread = (total * total - p @ p) * (total * total - t @ t)
    return ratio(covariance, math.sqrt(spread))


def pearson(predictions: Sequence, labels: Sequence) -> float:
    """Pearson's correlation (STS-B); 0 if one side is constant, for which it is undefined."""
    x, y = (np.asarray(side, np.float64) for side in (predictions, labels))
    if (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1, 1))


def spearman(predictions: Sequence, labels: Sequence) -> float:
    """Spearman's correlation: Pearson's of ranks, where ties share their mean rank."""
    return pearson(mean_ranks(predictions), mean_ranks(labels))


def mean_ranks(values: Sequence) -> np.ndarray:
    """Ranks from 1, float64 [N]; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def choose(scores: Sequence[Sequence[float]], lengths: Sequence[Sequence[int]] | None = None) -> np.ndarray:
    """The choice of highest score of each example, int64 [N]; the first of equals.

    Examples may have different numbers of choices. lengths: by which scores are divided (`acc_norm`: characters).
    """
    if lengths is not None:
        pairs = zip(scores, lengths, strict=True)
        scores = [np.asarray(one, np.float64) / np.asarray(length) for one, length in pairs]
    return np.array([int(np.argmax(one)) for one in scores], np.int64)


def retrieval(source: np.ndarray, target: np.ndarray) -> float:
    """Share of rows of `source` [N, D] whose nearest row of `target` by cosine is their own (Tatoeba).

    The first of equally near rows counts. Swap the arguments for the other direction.
    """
    source, target = (np.asarray(side, np.float64) for side in (source, target))
    # The length of a row of `source` does not change which is nearest.
    target = target / np.maximum(np.linalg.norm(target, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    nearest = [(source[row : row + ROWS] @ target.T).argmax(1) for row in range(0, len(source), ROWS)]
    return accuracy(np.concatenate(nearest), np.arange(len(source)))


def to_classes(texts: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Classes by their names, int64 [N], without white space around them; INVALID for any other text."""
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers.get(text.strip(), INVALID) for text in texts], np.int64)


def to_numbers(texts: Sequence[str], otherwise: float = -1.0) -> np.ndarray:
    """Numbers that texts are, float64 [N]; `otherwise` for any other text, as T5 has it for STS-B."""
    found = np.full(len(texts), otherwise)
    for place, text in enumerate(texts):
        try:
            number = float(text)
        except ValueError:
            continue
        found[place] = number if math.isfinite(number) else otherwise
    return found


def standard_error(share: float, examples: int) -> float:
    """Standard error of a share over independent examples: sqrt(p (1 - p) / (n - 1)); nan for one example."""
    return math.sqrt(share * (1 - share) / (examples - 1)) if examples > 1 else math.nan


def ratio(part: float, whole: float) -> float:
    """A quotient; 0 if `whole` is."""
    return part / whole if whole else 0.0
