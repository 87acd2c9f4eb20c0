"""Scores of texts: nats, and what they are divided by."""

import math
from collections.abc import Callable, Mapping, Sequence

from pretrain.scoring.inputs import texts_of
from pretrain.scoring.requests import Request, Scorer


def score_texts(
    scorer: Scorer,
    texts: Sequence[str | tuple[str, str]],
    tokens: bool = False,
    report: Callable[[int], None] = lambda done: None,
) -> list[dict]:
    """Scores of texts, or of continuations behind their contexts.

    Each has `nats` (the negative log-probability, every token scored once), numbers of `tokens`, `bytes`, `characters`
    and `words`, and `bits_per_byte` and `perplexity`, which is a token's. With `tokens` also the `pieces` and
    `log_probs` of each. Long texts are read in windows of the context. Errors: UserError for empty continuations.
    """
    groups = []
    for text in texts:
        pair = isinstance(text, tuple)
        groups.append([scorer.row(Request(*text))] if pair else scorer.windows(text))
    found = []
    for text, rows, scored in zip(texts, groups, scorer.score_rows(groups, report), strict=True):
        written = text[1] if isinstance(text, tuple) else text
        found.append(summary(written, [number for one in scored for number in one.log_probs.tolist()]))
        if tokens:
            ids = [int(i) for row, one in zip(rows, scored, strict=True) for i in row.ids[-len(one.log_probs) :]]
            found[-1] |= {
                "pieces": [scorer.tokenizer.decode([i]) for i in ids],
                "log_probs": [number for one in scored for number in one.log_probs.tolist()],
            }
    return found


def summary(text: str, log_probs: Sequence[float]) -> dict:
    """Sums of a text's scores."""
    nats, size = -math.fsum(log_probs), len(text.encode())
    found = {"nats": nats, "tokens": len(log_probs), "bytes": size, "characters": len(text), "words": len(text.split())}
    if size:
        found["bits_per_byte"] = nats / math.log(2) / size
    if log_probs:
        found["perplexity"] = math.exp(min(nats / len(log_probs), 700.0))
    return found


def total(scores: Sequence[Mapping]) -> dict:
    """The sums over texts, and their quotients."""
    names = ("nats", "tokens", "bytes", "characters", "words")
    sums = {name: math.fsum(one[name] for one in scores) for name in names}
    sums |= {name: int(sums[name]) for name in names[1:]}
    if sums["bytes"]:
        sums["bits_per_byte"] = sums["nats"] / math.log(2) / sums["bytes"]
    if sums["tokens"]:
        sums["perplexity"] = math.exp(min(sums["nats"] / sums["tokens"], 700.0))
    return sums


def texts_or_pairs(records: Sequence[Mapping]) -> list[str | tuple[str, str]]:
    """Texts of records with a field `text`, or pairs of those with `context` and `continuation`. Errors: DataError."""
    if not any("continuation" in record for record in records):
        return texts_of(records)
    contexts = [str(record.get("context", "")) for record in records]
    return list(zip(contexts, texts_of(records, field="continuation"), strict=True))
