"""Metrics of tags: spans as conlleval and as seqeval's strict mode find them, and the accuracy of words.

A span is (type, start, end) in words, `end` exclusive. A tag is a prefix and a type, such as B-PER, or O.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pretrain.tasks.metrics.classes import ratio

OUTSIDE = "O"
SCHEMES = ("BIO", "IOB1", "IOB2", "IOBES")  # BIO is IOB2
Span = tuple[str, int, int]
Table = dict[str, dict[str, float]]


def spans(tags: Sequence[str], scheme: str = "") -> list[Span]:
    """The spans of one sentence.

    scheme: "" as conlleval, where a stray I- begins a span; else one of SCHEMES, where badly formed spans are none.
    """
    pairs = [(prefix, name or "_") for prefix, _, name in (tag.partition("-") for tag in tags)]
    return _strict(pairs, scheme) if scheme else _conlleval(pairs)


def _conlleval(pairs: Sequence[tuple[str, str]]) -> list[Span]:
    found, start = [], None
    previous = OUTSIDE, "_"
    for place, (prefix, name) in enumerate([*pairs, (OUTSIDE, "_")]):
        changed = name != previous[1]
        # A span goes on through I and E of one type, until E or S.
        begins = prefix in "BS" or (prefix in "IE" and (previous[0] in "OES" or changed))
        if start is not None and (begins or prefix == OUTSIDE):
            found.append((previous[1], start, place))
            start = None
        if begins:
            start = place
        previous = prefix, name
    return found


def _strict(pairs: Sequence[tuple[str, str]], scheme: str) -> list[Span]:
    continues = "IE" if scheme == "IOBES" else "I"
    found, place = [], 0
    while place < len(pairs):
        prefix, name = pairs[place]
        before = pairs[place - 1] if place else (OUTSIDE, "_")
        end = place + 1
        if not _begins(prefix, name, before, scheme):
            place = end
            continue
        while end < len(pairs) and pairs[end - 1][0] in "BI" and pairs[end][0] in continues and pairs[end][1] == name:
            end += 1
        if _ends(pairs[end - 1], pairs[end] if end < len(pairs) else (OUTSIDE, "_"), scheme):
            found.append((name, place, end))
        place = end
    return found


def _begins(prefix: str, name: str, before: tuple[str, str], scheme: str) -> bool:
    if scheme != "IOB1":
        return prefix == "B" or (prefix == "S" and scheme == "IOBES")
    if prefix == "I":
        return before[0] in "OB" or before[1] != name
    # In IOB1 a B- only parts two spans of one type.
    return prefix == "B" and before[0] in "IB" and before[1] == name


def _ends(last: tuple[str, str], after: tuple[str, str], scheme: str) -> bool:
    if scheme == "IOBES":
        return last[0] in "ES"
    # seqeval's IOB1 has no end between a B- and a B- of another type.
    return not (scheme == "IOB1" and last[0] == after[0] == "B" and last[1] != after[1])


def span_table(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]], scheme: str = "") -> Table:
    """Precision, recall, F1 and support of each type of span, and of all under "micro" and "macro".

    Words without a prediction, which the length cut off, are O. scheme: as `spans` has it.
    """
    predicted, true, right = Counter(), Counter(), Counter()
    for tags, gold in zip(predictions, labels, strict=True):
        tags = [*tags[: len(gold)], *[OUTSIDE] * (len(gold) - len(tags))]
        mine, theirs = set(spans(tags, scheme)), set(spans(gold, scheme))
        for counter, some in ((predicted, mine), (true, theirs), (right, mine & theirs)):
            counter.update(name for name, _, _ in some)
    names = sorted(predicted.keys() | true.keys())
    table = {name: _row(right[name], predicted[name], true[name]) for name in names}
    rows = list(table.values())
    macro = {key: float(np.mean([row[key] for row in rows])) if rows else 0.0 for key in ("precision", "recall", "f1")}
    micro = _row(right.total(), predicted.total(), true.total())
    return table | {"micro": micro, "macro": macro | {"support": micro["support"]}}


def _row(right: int, predicted: int, true: int) -> dict[str, float]:
    scores = {"precision": ratio(right, predicted), "recall": ratio(right, true)}
    return scores | {"f1": ratio(2 * right, predicted + true), "support": true}


def word_accuracy(predictions: Sequence[Sequence], labels: Sequence[Sequence]) -> float:
    """Share of words whose tag is right (POS); words without a prediction are wrong."""
    pairs = [(tags, gold) for tags, gold in zip(predictions, labels, strict=True)]
    right = sum(one == other for tags, gold in pairs for one, other in zip(tags, gold, strict=False))
    return ratio(right, sum(len(gold) for _, gold in pairs))
