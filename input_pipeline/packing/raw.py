"""Raw rows: what every layout gives, whatever task is made of it."""

from typing import NamedTuple, Protocol

import numpy as np


class Raw(NamedTuple):
    """n raw rows of R ids of text.

    Where `segments` is 0 there is no text, and the other arrays hold 0.
    """

    ids: np.ndarray  # int32 [n, R]
    following: np.ndarray  # int32 [n, R], the id after each in the text, also where that is beyond the row
    segments: np.ndarray  # int32 [n, R], which document of its row an id belongs to, from 1
    positions: np.ndarray  # int32 [n, R], its place in the document (packed, document) or the row
    scored: np.ndarray  # bool [n, R], whether it counts: all text in training, in evaluation once in all rows

    def where(self, inside: np.ndarray) -> "Raw":
        """These rows without what is not `inside`, bool [n, R]."""
        return Raw(*(field * inside for field in self))


class RawRows(Protocol):
    """Raw rows by number."""

    def __len__(self) -> int: ...
    def read(self, rows: np.ndarray) -> Raw: ...


def contiguous(ids: np.ndarray) -> Raw:
    """Raw rows of one stretch of text each, given its ids and one more: int32 [n, R + 1]."""
    rows, length = ids.shape[0], ids.shape[1] - 1
    here = np.ones((rows, length), np.int32)
    return Raw(ids[:, :-1], ids[:, 1:], here, np.arange(length, dtype=np.int32) * here, here.astype(bool))
