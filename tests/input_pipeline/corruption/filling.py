"""Batches that objectives make of raw rows."""

import numpy as np

from configs import common
from input_pipeline.batch_spec import declared, empty
from input_pipeline.corruption import build


def build_objective(kind, tokenizer, **changes):
    """The objective of this kind, with these keys of its section changed; masked has no pairs by default."""
    section = common.OBJECTIVES[kind]()
    section.update(({"next_sentence": False} if kind == "masked" else {}) | changes)
    return build(section.to_dict(), tokenizer)


def fill_batch(objective, raw, keys=None, length=0, layout="concat"):
    """The batch of raw rows; `length` is that of its rows, if raw ones have another."""
    rows = len(raw.ids)
    batch = empty(declared(objective, rows, length or raw.ids.shape[1], layout))
    objective.fill(batch, np.arange(rows), raw, np.arange(rows) if keys is None else keys)
    return batch


def assert_uniform(counts, ways: int) -> None:
    """Asserts that counts (a mapping) of `ways` outcomes are alike, within five standard errors."""
    mean = sum(counts.values()) / ways
    assert len(counts) == ways and all(abs(count - mean) < 5 * np.sqrt(mean) for count in counts.values())
