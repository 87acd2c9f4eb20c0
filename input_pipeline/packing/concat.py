"""Raw rows, and those of windows over the joined documents (layouts concat, document and stream).

Raw rows are what every layout gives, whatever objective is made of them. Reading any row is index arithmetic over a
token store, so that rows can be read in any order, by any process.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.token_store.store import Counts
from input_pipeline.token_store.stream import Stream
from input_pipeline.tokenizers.base import Tokenizer


class Raw(NamedTuple):
    """n raw rows of R ids of text; all arrays are 0 where `segments` is 0, which is padding."""

    ids: np.ndarray  # int32 [n, R]
    following: np.ndarray  # int32 [n, R], the next id of the text, even if it is beyond the row
    segments: np.ndarray  # int32 [n, R], document within the row, from 1
    positions: np.ndarray  # int32 [n, R], place in the document (packed, document) or in the row
    scored: np.ndarray  # bool [n, R]: in training all text, in evaluation each token in one row
    types: np.ndarray | None = None  # int32 [n, R], of sentence pairs: 1 in the second segment and its separator
    is_random: np.ndarray | None = None  # bool [n], of sentence pairs: the second segment does not follow the first
    languages: np.ndarray | None = None  # int32 [n, R], with `data.languages`: place of each id's language in it

    @classmethod
    def one_segment(cls, ids: np.ndarray, inside: np.ndarray, **more: np.ndarray) -> "Raw":
        """Rows of one segment each from ids int32 [n, R + 1] and used places bool [n, R]."""
        places = np.arange(inside.shape[1], dtype=np.int32)
        return cls(ids[:, :-1], ids[:, 1:], inside.astype(np.int32), places * inside, inside, **more)

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Raw":
        """These rows with `function` applied to each array."""
        return Raw(*(field if field is None else function(field) for field in self))

    def where(self, inside: np.ndarray) -> "Raw":
        """These rows with padding outside of `inside`, bool [n, R]."""
        return self.map(lambda field: field * inside)


class RawRows(Protocol):
    """Raw rows by number."""

    def __len__(self) -> int: ...
    def read(self, rows: np.ndarray) -> Raw:
        """Rows `rows` (int64 [n])."""


class BareStream:
    """A stream without its end tokens."""

    def __init__(self, stream: Stream):
        self.tokens, self.copy = stream.bare_tokens, stream.copy_bare


def read_windows(stream: Stream | BareStream, starts: np.ndarray, length: int) -> Raw:
    """Windows of `length` ids of a stream from ids `starts` (int64 [n]) on, each one segment."""
    # One id more than the row, so that the last position has a following id too.
    ids = np.empty((len(starts), length + 1), np.int32)
    for out, start in zip(ids, starts.tolist(), strict=True):
        stream.copy(start, out)
    return Raw.one_segment(ids, np.ones((len(starts), length), bool))


@dataclass(frozen=True)
class Windows:
    """Windows of `length` ids every `stride` ids, as many as lie within the stream."""

    stream: Stream | BareStream
    length: int
    stride: int

    def __len__(self) -> int:
        return max(0, (self.stream.tokens - self.length) // self.stride + 1)

    def read(self, rows: np.ndarray) -> Raw:
        return read_windows(self.stream, rows * self.stride, self.length)


@dataclass(frozen=True)
class EvalWindows:
    """Windows that score each target once: the first all of its targets, later ones their last `stride`.

    So each target is scored with at least length - stride ids before it, if the split has them. The last window is
    padded.
    """

    stream: Stream | BareStream
    targets: int  # ids of the stream that are scored
    length: int
    stride: int

    def __len__(self) -> int:
        # The first window covers `length` targets, each later one `stride` more; rounded up.
        return (self.targets > 0) + max(0, -(-(self.targets - self.length) // self.stride))

    def read(self, rows: np.ndarray) -> Raw:
        places = rows[:, None] * self.stride + np.arange(self.length)  # [n, R], in the stream
        # Context is read again but not scored, except in the first window, where it is scored for the first time.
        fresh = (rows[:, None] == 0) | (np.arange(self.length) >= self.length - self.stride)
        raw = read_windows(self.stream, rows * self.stride, self.length).where(places < self.targets)
        return raw._replace(scored=raw.scored & fresh)


def document_windows(stream: Stream, length: int) -> Windows:
    """One row per document: the end token and all ids but the last, each predicting the next id of the document.

    Errors: DataError if a document does not have exactly `length` ids.
    """
    sizes = stream.document_sizes() - 1  # without the end token
    wrong = np.flatnonzero(sizes != length)
    if len(wrong):
        raise DataError(
            f"data.layout=document: document {wrong[0]} has {sizes[wrong[0]]} tokens, rows {length}. Set data.length, "
            "or data.layout=packed."
        )
    # Each document takes length + 1 ids of the stream, one of them its end token in front.
    return Windows(stream, length, length + 1)


def count_targets(stream: Stream, tokenizer: Tokenizer) -> Counts:
    """How much of a stream is predicted; without end tokens its first token has no context and is only read."""
    counts = stream.counts
    if tokenizer.end_id is None:
        first, lengths = np.empty(1, np.int32), tokenizer.byte_lengths
        stream.copy(0, first)
        counts = counts._replace(tokens=counts.tokens - 1)
        if lengths is not None:
            counts = counts._replace(bytes=counts.bytes - int(lengths[first[0]]))
    return counts


@dataclass(frozen=True)
class Monolingual:
    """`rows` of text of one language."""

    rows: RawRows
    language: int  # place in `data.languages`

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> Raw:
        raw = self.rows.read(rows)
        return raw._replace(languages=self.language * (raw.segments > 0).astype(np.int32))


@dataclass(frozen=True)
class Coded:
    """Rows of one segment behind the control code of their source (Keskar et al. 2019, section 3)."""

    rows: RawRows
    code: np.ndarray  # int32 [C]
    scored: bool  # whether the code's own targets count: in evaluation the text before has scored them

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> Raw:
        raw = self.rows.read(rows)
        inside = raw.segments[:, :1] > 0  # [n, 1]: rows of padding have no code
        code = self.code * inside
        segments = np.concatenate([inside * np.ones_like(code), raw.segments], axis=1)
        return Raw(
            # The code predicts its own later ids, then the first id of the text.
            ids=np.concatenate([code, raw.ids], axis=1),
            following=np.concatenate([code[:, 1:], raw.ids[:, :1], raw.following], axis=1),
            segments=segments,
            positions=np.arange(segments.shape[1], dtype=np.int32) * (segments > 0),
            scored=np.concatenate([np.broadcast_to(inside & self.scored, code.shape), raw.scored], axis=1),
        )


def texts_without_code(texts: Iterable[str], codes: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Those of `texts` that begin with none of the control `codes`, compared by ids."""
    prefixes = [tokenizer.encode(code).tolist() for code in codes]
    ids = {text: tokenizer.encode(text).tolist() for text in texts}
    return [text for text in texts if not any(ids[text][: len(code)] == code for code in prefixes)]
