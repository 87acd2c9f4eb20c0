"""Pretraining tasks, their first half: from raw rows to features. The second half, scoring, is `pretrain.losses`.

An objective has

    layouts                           the layouts that it works with
    bare                              whether windows are cut from text without end tokens
    two_texts                         whether documents of two fields are a text that is read and one that is written;
                                      of layout texts all are
    segmented                         of layout stream: whether rows end with two segments (layouts/segments.py)
    special                           names of the special ids that it writes
    raw_length(length)                how many ids of text make a row of so many tokens
    least                             the fewest that it can be made of
    check(length)                     refuses settings that ask for what rows of so many tokens cannot hold
    check_sentinels(length, count)    refuses rows of so many tokens where they take more sentinels than there are
    features(batch_size, length)      what its batches hold, by name
    fill(batch, slots, raw, keys)     writes raw rows into rows `slots` of a batch
    counted, weigh(counts)            whether it is to be told how often each id is in the text, and how it is told
    codes                             codes of languages that its texts have; () where they have none
    prompts(texts)                    what a model starts to write from, for each of these texts: `Prompts`

`keys` are one integer a row, from which whatever it draws at random follows: in training of the seed and the example's
number, in evaluation of the row alone.
"""

from collections.abc import Mapping

from input_pipeline.corruption.causal import Causal
from input_pipeline.corruption.denoising import Denoising
from input_pipeline.corruption.mlm import Masked
from input_pipeline.corruption.permutation import Permutation
from input_pipeline.corruption.replaced import Replaced
from input_pipeline.corruption.spans import Spans
from input_pipeline.corruption.translation import Translation
from input_pipeline.packing import electra_segments, full_sentences
from input_pipeline.tokenizers.base import Tokenizer

OBJECTIVES = {
    "causal": Causal,
    "masked": Masked,
    "spans": Spans,
    "replaced": Replaced,
    "translation": Translation,
    "permutation": Permutation,
    "denoising": Denoising,
}
OF_LAYOUTS = {
    "sentences": full_sentences.SPECIAL,
    "halves": electra_segments.SPECIAL,
}  # special ids that a layout writes, whatever the task


def build(section: Mapping, tokenizer: Tokenizer | None = None):
    """The objective of `config.objective`. Without a tokenizer it says what batches hold, but fills none.

    Errors: DataError where the tokenizer lacks what it needs, or its settings contradict each other.
    """
    return OBJECTIVES[section["kind"]](section, tokenizer)


def special(section: Mapping, layout: str) -> tuple[str, ...]:
    """Names of the special ids that a task writes, and those that its layout does."""
    own = build(section).special
    return (*own, *(name for name in OF_LAYOUTS.get(layout, ()) if name not in own))
