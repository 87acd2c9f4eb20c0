"""Metrics of extracted answers: SQuAD v1.1, SQuAD v2.0 and MLQA, as their official scripts compute them.

All are fractions, means over questions; the best of a question's references counts.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

Tokens = Callable[[str], list[str]]
Score = Callable[[str, str, Tokens], float]
# Articles of MLQA by language; Hindi and Chinese have none. Arabic's is part of its word.
ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "ar": "ال",
}
CHINESE = re.compile("([\u4e00-\u9fa5])")
PUNCTUATION = frozenset(string.punctuation)


def squad_tokens(text: str) -> list[str]:
    """Words of SQuAD: lower-cased, without ASCII punctuation and English articles."""
    text = "".join(char for char in text.lower() if char not in PUNCTUATION)
    return re.sub(ARTICLES["en"], " ", text).split()


def mlqa_tokens(text: str, language: str) -> list[str]:
    """Words of MLQA: lower-cased, without punctuation of any script and the language's articles.

    Chinese is split by character. Languages that MLQA lacks have words between white space and no articles.
    """
    kept = [char for char in text.lower() if char not in PUNCTUATION and unicodedata.category(char)[0] != "P"]
    text = "".join(kept)
    if language in ARTICLES:
        text = re.sub(ARTICLES[language], " ", text)
    return (CHINESE.sub(r" \1 ", text) if language == "zh" else text).split()


def exact_match(prediction: str, reference: str, tokens: Tokens = squad_tokens) -> float:
    """Whether two answers have the same words."""
    return float(tokens(prediction) == tokens(reference))


def token_f1(prediction: str, reference: str, tokens: Tokens = squad_tokens) -> float:
    """F1 of two bags of words; 0 if one is empty."""
    mine, theirs = tokens(prediction), tokens(reference)
    common = (Counter(mine) & Counter(theirs)).total()
    return 2 * common / (len(mine) + len(theirs)) if common else 0.0


def token_f1_or_empty(prediction: str, reference: str, tokens: Tokens = squad_tokens) -> float:
    """F1 of two bags of words; 1 if both are empty (SQuAD v2.0)."""
    empty = not (tokens(prediction) or tokens(reference))
    return 1.0 if empty else token_f1(prediction, reference, tokens)


def squad(
    predictions: Sequence[str], references: Sequence[Sequence[str]], tokens: Tokens = squad_tokens
) -> dict[str, float]:
    """Exact match and F1 of SQuAD v1.1, or with `mlqa_tokens` of MLQA."""
    return {
        name: float(_best_of_references(score, predictions, references, tokens).mean())
        for name, score in (("exact", exact_match), ("f1", token_f1))
    }


def _best_of_references(score: Score, predictions, references, tokens: Tokens = squad_tokens) -> np.ndarray:
    pairs = zip(predictions, references, strict=True)
    return np.array([max(score(mine, one, tokens) for one in some) for mine, some in pairs], np.float64)


def squad_v2(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    no_answer: Sequence[float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Exact match and F1 of all questions, of those with an answer (HasAns) and without (NoAns), and the best of both.

    references: none for a question without an answer. no_answer: a score of each question that rises as an answer
    becomes unlikely; above `threshold` the prediction counts as empty. The best scores are those of the threshold that
    serves them best, which is 0 where no answer at all does. Keys are the official script's; without a question of
    a kind, or without `no_answer`, theirs are absent.
    """
    answerable = np.array([len(some) > 0 for some in references])
    # References of no words, such as an article, are left out.
    kept = [[one for one in some if squad_tokens(one)] or [""] for some in references]
    scores = np.zeros(len(references)) if no_answer is None else np.asarray(no_answer, np.float64)
    raw, found = {}, {}
    for name, score in (("exact", exact_match), ("f1", token_f1_or_empty)):
        raw[name] = _best_of_references(score, predictions, kept)
        found[name] = np.where(scores > threshold, ~answerable, raw[name])
    table = {name: float(values.mean()) for name, values in found.items()} | {"total": len(answerable)}
    for kind, chosen in (("HasAns", answerable), ("NoAns", ~answerable)):
        if chosen.any():
            table |= {f"{kind}_{name}": float(values[chosen].mean()) for name, values in found.items()}
            table[f"{kind}_total"] = int(chosen.sum())
    if no_answer is not None:
        for name, values in raw.items():
            table[f"best_{name}"], table[f"best_{name}_thresh"] = _best(values, predictions, answerable, scores)
    return table


def _best(values: np.ndarray, predictions: Sequence[str], answerable: np.ndarray, scores: np.ndarray):
    """(score, threshold) that are best where questions are answered in the order of their scores, one by one."""
    given = np.array([bool(one) for one in predictions])
    # Answering a question gains its score, or loses the point that an empty answer has.
    gains = np.where(answerable, values, -given.astype(np.float64))
    order = np.argsort(scores, kind="stable")
    totals = (~answerable).sum() + np.concatenate([[0.0], np.cumsum(gains[order])])
    best = int(totals.argmax())
    return float(totals[best] / len(values)), float(scores[order[best - 1]]) if best else 0.0
