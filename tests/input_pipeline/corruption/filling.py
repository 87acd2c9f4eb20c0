"""Batches that objectives make of raw rows."""

import numpy as np

from configs import common
from input_pipeline.batch_spec import declared, empty
from input_pipeline.corruption import build


def masked(vocabulary, **changes):
    """The objective of masked tokens, without pairs, with these keys changed."""
    section = common.masked()
    section.update({"next_sentence": False, **changes})
    return build(section.to_dict(), vocabulary)


def filled(objective, raw, keys, length=0, layout="concat"):
    """The batch of raw rows by their keys; `length` is that of its rows, where raw ones are not as long."""
    batch = empty(declared(objective, len(keys), length or raw.ids.shape[1], layout))
    objective.fill(batch, np.arange(len(keys)), raw, keys)
    return batch
