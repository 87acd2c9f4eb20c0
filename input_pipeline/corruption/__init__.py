"""Corruption half of each objective: raw rows -> features. `pretrain.losses` is the scoring half.

`Objective` (base.py) is the interface. Everything here is NumPy and a pure function of raw rows and integer keys.
"""

from collections.abc import Mapping

from input_pipeline.corruption.base import Objective
from input_pipeline.corruption.causal import CausalLM
from input_pipeline.corruption.examples import Choice, Classification, Frame, Regression, Siamese, Tagging
from input_pipeline.corruption.extraction import Extraction
from input_pipeline.corruption.infilling import Infilling
from input_pipeline.corruption.mlm import MaskedLM
from input_pipeline.corruption.permutation import PermutationLM
from input_pipeline.corruption.replaced import ReplacedTokens
from input_pipeline.corruption.seq2seq import Translation
from input_pipeline.corruption.spans import SpanCorruption
from input_pipeline.corruption.texts import Answers, TextToText
from input_pipeline.corruption.texts import class_names as class_names
from input_pipeline.errors import DataError
from input_pipeline.tokenizers.base import Tokenizer
from input_pipeline.tokenizers.word_starts import WordStarts

OBJECTIVES: dict[str, type[Objective]] = {
    objective.kind: objective
    for objective in (
        *(CausalLM, MaskedLM, SpanCorruption, ReplacedTokens, Translation, PermutationLM, Infilling),
        *(Classification, Regression, Choice, Tagging, Extraction, TextToText, Siamese),
    )
}

# Special ids that a layout writes, whatever the objective.
LAYOUT_SPECIAL = dict.fromkeys(("sentences", "halves"), ("classifier", "separator"))


def reads_records(section: Mapping) -> bool:
    """Whether a causal objective reads records, by templates, instead of plain text."""
    return section["kind"] == "causal" and bool(section["inputs"] or section["turns"])


def build(section: Mapping, tokenizer: Tokenizer | None = None, frame: Frame | None = None) -> Objective:
    """The objective of `config.objective`; without a tokenizer it declares features but fills no batch.

    frame: special tokens around the texts of tasks; None: the tokenizer's usual ones. Errors: DataError for
    contradictory settings, or a tokenizer that lacks what the objective needs.
    """
    kind = Answers if reads_records(section) else OBJECTIVES[section["kind"]]
    for name, choices in kind.choices.items():
        if section[name] not in choices:
            raise DataError(f"objective.{name}={section[name]}: unknown. Choose one of: {', '.join(choices)}.")
    objective = kind(section, tokenizer, frame) if frame and "examples" in kind.layouts else kind(section, tokenizer)
    if objective.needs_words and tokenizer:
        if tokenizer.continues is None:
            problem = "this tokenizer does not mark words. Use sentencepiece or wordpiece."
            raise DataError(f"objective.{objective.needs_words}: {problem}")
        objective.word_starts = WordStarts(tokenizer.continues, tokenizer.texts)
    return objective


def special(section: Mapping, layout: str) -> tuple[str, ...]:
    """Names of the special ids that the objective of `config.objective` and a layout write."""
    own = build(section).special
    return (*own, *(name for name in LAYOUT_SPECIAL.get(layout, ()) if name not in own))
