"""The batch contract: what a batch holds, by name, shape, type and axes. Batches are flat dicts of NumPy arrays.

Every batch has

    row        place of a row in the whole batch, whichever host holds it: what randomness is drawn by
    tokens     what the model reads
    segments   which document a position belongs to, counted from 1 in each row; 0 is padding
    positions  place of a token within its document (packed, document) or its row (concat, stream)

and of streams `reset`: True where a row does not continue the same row of the batch before. The rest is its
objective's (`input_pipeline.corruption`). Padding is known by segments and weights alone, never by a token's id.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

INTEGER, REAL, TRUTH = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_)


class Feature(NamedTuple):
    """One array of a batch: its shape, its type, and what its axes are: "batch", "length", or None."""

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[str | None, ...]


def by_token(batch_size: int, length: int, dtype: np.dtype = INTEGER) -> Feature:
    """A feature [B, T] with an entry for each token of a row."""
    return Feature((batch_size, length), dtype, ("batch", "length"))


def by_row(batch_size: int, dtype: np.dtype = INTEGER) -> Feature:
    """A feature [B] with an entry for each row."""
    return Feature((batch_size,), dtype, ("batch",))


def declared(objective, batch_size: int, length: int, layout: str) -> dict[str, Feature]:
    """All features of an objective's batches of `batch_size` rows, read from a layout."""
    features = {"row": by_row(batch_size), **objective.features(batch_size, length)}
    return features | ({"reset": by_row(batch_size, TRUTH)} if layout == "stream" else {})


def empty(features: Mapping[str, Feature]) -> dict[str, np.ndarray]:
    """A batch of nothing but padding: zeros everywhere."""
    return {name: np.zeros(feature.shape, feature.dtype) for name, feature in features.items()}
