"""The batch contract: names, shapes, types and axes of a batch, a flat dict of NumPy arrays.

Every batch has

    row        place of a row in the global batch, whichever host holds it: randomness is drawn by it
    tokens     what the model reads
    segments   document that a position belongs to, from 1 in each row; 0 is padding
    positions  place of a token in its document (packed, document) or its row (concat, stream)

and, of streams, `reset`: True if a row does not continue the same row of the batch before. All else is declared by the
objective (`input_pipeline.corruption`). Padding is defined by segments and weights, never by a token's id.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

INTEGER, REAL, TRUTH = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_)


class Feature(NamedTuple):
    """Shape, type and axes ("batch", "length" or None) of one array of a batch."""

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[str | None, ...]


def by_token(batch_size: int, length: int, dtype: np.dtype = INTEGER) -> Feature:
    """A feature [B, T] with one entry per token."""
    return Feature((batch_size, length), dtype, ("batch", "length"))


def by_row(batch_size: int, dtype: np.dtype = INTEGER) -> Feature:
    """A feature [B] with one entry per row."""
    return Feature((batch_size,), dtype, ("batch",))


def declared(objective, batch_size: int, length: int, layout: str) -> dict[str, Feature]:
    """Features of an objective's batches of `batch_size` rows in a layout."""
    features = {"row": by_row(batch_size), **objective.features(batch_size, length)}
    return features | ({"reset": by_row(batch_size, TRUTH)} if layout == "stream" else {})


def empty(features: Mapping[str, Feature]) -> dict[str, np.ndarray]:
    """A batch of padding: zeros everywhere."""
    return {name: np.zeros(feature.shape, feature.dtype) for name, feature in features.items()}
