"""Metrics of written texts: BLEU and chrF of sacrebleu, ROUGE of rouge-score, and exact match.

BLEU, chrF and chrF++ are 0 to 100, as sacrebleu prints them; ROUGE and exact match are fractions.
"""

from collections.abc import Sequence

import numpy as np

from pretrain.errors import UserError

PACKAGES = {"sacrebleu": "sacrebleu", "rouge_score": "rouge-score"}  # module: package
MODULES = dict.fromkeys(("bleu", "chrf", "chrf++"), "sacrebleu")  # that metrics need
MODULES |= dict.fromkeys(("rouge1", "rouge2", "rougeLsum"), "rouge_score")
References = Sequence[Sequence[str]]


def package(module: str, setting: str):
    """A module that a `setting`, such as a metric, needs. Errors: UserError if it is not installed."""
    try:
        if module == "sacrebleu":
            import sacrebleu

            return sacrebleu
        import rouge_score.rouge_scorer

        return rouge_score.rouge_scorer
    except ImportError:
        raise UserError(f"{setting}: needs the package {PACKAGES[module]}. Run pip install -e '.[metrics]'.") from None


def exact_match(predictions: Sequence[str], references: References) -> float:
    """Share of texts that equal one of their references, but for white space around them."""
    pairs = zip(predictions, references, strict=True)
    return float(np.mean([mine.strip() in {one.strip() for one in some} for mine, some in pairs]))


def _metric(name: str, language: str):
    sacrebleu = package("sacrebleu", f"config.objective.metrics={name}")
    if name == "bleu":
        return sacrebleu.metrics.BLEU(trg_lang=language)
    return sacrebleu.metrics.CHRF(word_order=2 if name == "chrf++" else 0)


def sacrebleu_score(name: str, predictions: Sequence[str], references: References, language: str = "") -> float:
    """Corpus score of bleu, chrf or chrf++. language: of the targets, which chooses BLEU's tokenizer (zh, ja, ko)."""
    return _metric(name, language).corpus_score(list(predictions), _streams(references)).score


def signature(name: str, predictions: Sequence[str], references: References, language: str = "") -> str:
    """The settings of sacrebleu that a score of bleu, chrf or chrf++ must be quoted with."""
    metric = _metric(name, language)
    metric.corpus_score(list(predictions), _streams(references))
    return str(metric.get_signature())


def _streams(references: References) -> list[list[str | None]]:
    """References as sacrebleu takes them: first ones, second ones, and so on; None where a text has fewer."""
    most = max(map(len, references))
    return [[some[place] if place < len(some) else None for some in references] for place in range(most)]


def rouge(name: str, predictions: Sequence[str], references: References) -> float:
    """Mean F1 of rouge1, rouge2 or rougeLsum, with Porter's stemmer (`-m` of ROUGE 1.5.5); the best reference counts.

    Sentences are lines (Lsum).
    """
    scorer = package("rouge_score", f"config.objective.metrics={name}").RougeScorer([name], use_stemmer=True)
    pairs = zip(predictions, references, strict=True)
    return float(np.mean([scorer.score_multi(list(some), mine)[name].fmeasure for mine, some in pairs]))
