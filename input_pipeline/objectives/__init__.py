"""Pretraining tasks, their first half: from raw rows to features. The second half, scoring, is `pretrain.objectives`.

An objective has

    layouts                           the layouts that it works with
    raw_length(length)                how many ids of text make a row of so many tokens
    features(batch_size, length)      what its batches hold, by name
    fill(batch, slots, raw, keys)     writes raw rows into rows `slots` of a batch

`keys` are one integer a row, from which whatever it draws at random follows: in training of the seed and the example's
number, in evaluation of the row alone.
"""

from collections.abc import Mapping

from input_pipeline.objectives.causal import Causal

OBJECTIVES = {"causal": Causal}


def build(section: Mapping):
    """The objective of `config.objective`."""
    return OBJECTIVES[section["kind"]]()
