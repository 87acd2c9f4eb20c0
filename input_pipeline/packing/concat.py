"""Raw rows of a split, by number: windows of the joined documents, packed documents, or a document each."""

import numpy as np

from input_pipeline.errors import LENGTH, DataError
from input_pipeline.packing.documents import Plan
from input_pipeline.packing.raw import Raw, contiguous
from input_pipeline.token_store.stream import Stream


class Bare:
    """The text of a stream without end tokens, to be read as a stream is."""

    def __init__(self, stream: Stream):
        self.tokens, self.copy = stream.bare_tokens, stream.copy_bare


class Windows:
    """Windows of R ids every `stride` ids of the stream."""

    def __init__(self, stream: Stream | Bare, length: int, stride: int):
        self.stream, self.length, self.stride = stream, length, stride

    def __len__(self) -> int:
        """How many windows lie wholly within the stream."""
        return max(0, (self.stream.tokens - self.length) // self.stride + 1)

    def read(self, rows: np.ndarray) -> Raw:
        """Windows `rows` (int64 [n])."""
        return read_at(self.stream, rows * self.stride, self.length)


def read_at(stream: Stream | Bare, starts: np.ndarray, length: int) -> Raw:
    """Rows of `length` ids of the stream that begin at ids `starts` (int64 [n])."""
    ids = np.empty((len(starts), length + 1), np.int32)
    for out, start in zip(ids, starts.tolist(), strict=True):
        stream.copy(start, out)
    return contiguous(ids)


def whole_documents(stream: Stream, length: int, name: str) -> Windows:
    """A row for each document: the end token and all ids but the last, each followed by an id of the document.

    Errors: DataError, with the stream's `name`, where a document has not exactly `length` ids.
    """
    sizes = stream.documents() - 1  # without the end token
    wrong = np.flatnonzero(sizes != length)
    if len(wrong):
        raise DataError(
            f"document {wrong[0]} of {name} has {sizes[wrong[0]]} tokens, but layout document makes each one a row "
            f"of length {length}; set {LENGTH} to what all documents have, or data.layout to packed"
        )
    return Windows(stream, length, length + 1)


class Packed:
    """Rows of whole documents under a plan: segments count them, positions restart with each."""

    def __init__(self, stream: Stream, plan: Plan, length: int):
        self.stream, self.plan, self.length = stream, plan, length

    def __len__(self) -> int:
        return len(self.plan.first) - 1

    def read(self, rows: np.ndarray) -> Raw:
        """Rows `rows` (int64 [n]) of the plan."""
        shape = len(rows), self.length
        raw = Raw(*(np.zeros(shape, np.int32) for _ in range(4)), np.zeros(shape, bool))
        for slot, row in enumerate(rows.tolist()):
            pieces = slice(*self.plan.first[row : row + 2].tolist())
            starts, lengths = self.plan.starts[pieces], self.plan.lengths[pieces]
            begins = np.cumsum(lengths) - lengths  # place of each piece in the row
            ids = np.empty(lengths.max() + 1, np.int32)
            for start, length, begin in zip(starts.tolist(), lengths.tolist(), begins.tolist(), strict=True):
                self.stream.copy(start, ids[: length + 1])
                raw.ids[slot, begin : begin + length] = ids[:length]
                raw.following[slot, begin : begin + length] = ids[1 : length + 1]
            filled = int(lengths.sum())
            raw.segments[slot, :filled] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
            raw.positions[slot, :filled] = np.arange(filled) - np.repeat(begins, lengths)
            raw.scored[slot, :filled] = True
        return raw
