"""Scores of texts: nats, and what they are divided by."""

import math
from collections.abc import Mapping, Sequence

from pretrain.losses.objective import perplexity
from pretrain.scoring.inputs import texts_of
from pretrain.scoring.requests import Request, Scorer


def score_texts(scorer: Scorer, texts: Sequence[str | tuple[str, str]], tokens: bool = False) -> list[dict]:
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
    for text, rows, scored in zip(texts, groups, scorer.score_rows(groups), strict=True):
        written = text[1] if isinstance(text, tuple) else text
        log_probs = [number for one in scored for number in one.log_probs.tolist()]
        sizes = len(log_probs), len(written.encode()), len(written), len(written.split())
        found.append(summary(-math.fsum(log_probs), *sizes))
        if tokens:
            ids = [int(i) for row, one in zip(rows, scored, strict=True) for i in row.ids[-len(one.log_probs) :]]
            found[-1] |= {"pieces": [scorer.tokenizer.decode([i]) for i in ids], "log_probs": log_probs}
    return found


def summary(nats: float, tokens: int, size: int, characters: int, words: int) -> dict:
    """Sums, and what follows from them; `size` in bytes."""
    found = {"nats": nats, "tokens": tokens, "bytes": size, "characters": characters, "words": words}
    if size:
        found["bits_per_byte"] = nats / math.log(2) / size
    if tokens:
        found["perplexity"] = perplexity(nats / tokens)
    return found


def total(scores: Sequence[Mapping]) -> dict:
    """The summary of several texts."""
    sizes = (sum(one[name] for one in scores) for name in ("tokens", "bytes", "characters", "words"))
    return summary(math.fsum(one["nats"] for one in scores), *sizes)


def texts_or_pairs(records: Sequence[Mapping]) -> list[str | tuple[str, str]]:
    """Texts of records with a field `text`, or pairs of those with `context` and `continuation`. Errors: DataError."""
    if not any("continuation" in record for record in records):
        return texts_of(records)
    contexts = [str(record.get("context", "")) for record in records]
    return list(zip(contexts, texts_of(records, field="continuation"), strict=True))
