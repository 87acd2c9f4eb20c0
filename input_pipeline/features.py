"""The batch contract: what a batch holds, by name, shape and type. Batches are flat dicts of NumPy arrays.

    tokens     what the model reads
    targets    what it predicts, position by position
    weights    1 where a target counts, 0 elsewhere; padding is known by this alone, never by a token's id
    segments   which document a position belongs to, counted from 1 in each row; 0 is padding
    positions  place of a token within its document (packed, document) or its row (concat, stream)
    reset      of streams only: True where a row does not continue the same row of the batch before

Every document is preceded by the end token, the model's start symbol: documents are read as
`end doc end doc ... end`, so that every token of text and every separator is predicted exactly once. Rows of layout
`document` end with their document: no separator is predicted.
"""

from typing import NamedTuple

import numpy as np

LAYOUTS = ("concat", "packed", "stream", "document")


class Feature(NamedTuple):
    """Shape and dtype of one array of a batch."""

    shape: tuple[int, ...]
    dtype: np.dtype


def language_model(batch_size: int, length: int, layout: str) -> dict[str, Feature]:
    """The features of a language-model batch: int32 and float32 [B, T], and for streams `reset`, bool [B]."""
    integers = Feature((batch_size, length), np.dtype(np.int32))
    features = dict.fromkeys(("tokens", "targets", "segments", "positions"), integers)
    features["weights"] = Feature((batch_size, length), np.dtype(np.float32))
    if layout == "stream":
        features["reset"] = Feature((batch_size,), np.dtype(np.bool_))
    return features


def empty(batch_size: int, length: int, layout: str) -> dict[str, np.ndarray]:
    """A batch of nothing but padding: zeros everywhere."""
    return {name: np.zeros(*feature) for name, feature in language_model(batch_size, length, layout).items()}
