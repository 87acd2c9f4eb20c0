"""Rows of a split, by number: windows of the joined documents, packed documents, or a document each."""

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.layouts.packing import Plan
from input_pipeline.store.store import Stream


class Windows:
    """Windows of T ids every `stride` ids of the stream, each with the id that follows each of its ids as target."""

    def __init__(self, stream: Stream, length: int, stride: int):
        self.stream, self.length, self.stride = stream, length, stride

    def __len__(self) -> int:
        """How many windows lie wholly within the stream."""
        return max(0, (self.stream.tokens - self.length) // self.stride + 1)

    def fill(self, batch: dict[str, np.ndarray], slots: np.ndarray, rows: np.ndarray) -> None:
        """Writes rows (int64 [n]) of the stream into rows `slots` of the batch."""
        ids = np.empty((len(rows), self.length + 1), np.int32)
        for out, row in zip(ids, rows.tolist(), strict=True):
            self.stream.copy(row * self.stride, out)
        batch["tokens"][slots], batch["targets"][slots] = ids[:, :-1], ids[:, 1:]
        batch["segments"][slots] = 1
        batch["positions"][slots] = np.arange(self.length)
        batch["weights"][slots] = 1


def whole_documents(stream: Stream, length: int, name: str) -> Windows:
    """A row for each document: it reads the end token and all ids but the last, and predicts all ids.

    Errors: DataError, with the stream's `name`, where a document has not exactly `length` ids.
    """
    sizes = stream.documents() - 1  # without the end token
    wrong = np.flatnonzero(sizes != length)
    if len(wrong):
        raise DataError(
            f"document {wrong[0]} of {name} has {sizes[wrong[0]]} tokens, but layout document makes each one a row "
            f"of length {length}; set data.length to what all documents have, or data.layout to packed"
        )
    return Windows(stream, length, length + 1)


class Packed:
    """Rows of whole documents under a plan: segments count them, positions restart with each."""

    def __init__(self, stream: Stream, plan: Plan):
        self.stream, self.plan = stream, plan

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def fill(self, batch: dict[str, np.ndarray], slots: np.ndarray, rows: np.ndarray) -> None:
        """Writes rows (int64 [n]) of the plan into rows `slots` of the batch."""
        for slot, row in zip(slots.tolist(), rows.tolist(), strict=True):
            pieces = slice(*self.plan.first[row : row + 2].tolist())
            starts, lengths = self.plan.starts[pieces], self.plan.lengths[pieces]
            begins = np.cumsum(lengths) - lengths  # place of each piece in the row
            ids = np.empty(lengths.max() + 1, np.int32)
            for start, length, begin in zip(starts.tolist(), lengths.tolist(), begins.tolist(), strict=True):
                self.stream.copy(start, ids[: length + 1])
                batch["tokens"][slot, begin : begin + length] = ids[:length]
                batch["targets"][slot, begin : begin + length] = ids[1 : length + 1]
            filled = int(lengths.sum())
            batch["segments"][slot, :filled] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
            batch["positions"][slot, :filled] = np.arange(filled) - np.repeat(begins, lengths)
            batch["weights"][slot, :filled] = 1
