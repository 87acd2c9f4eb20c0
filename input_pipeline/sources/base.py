"""Documents, spans of files, and the interface of a source."""

import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from input_pipeline.errors import DataError
from input_pipeline.io import is_remote

CHUNK = 1 << 20  # characters at most; tokenizers take time and memory in proportion
LISTED = 20  # bad records that are listed


class Document(NamedTuple):
    """The texts of a document, each in chunks to be read once and in order; for an image, its bytes.

    holdout_rank: a hash in [0, 1) of the file's name if a file is a document, else of the content, so that equal lines
        share it. Documents below `data.holdout` are held out.
    texts: one, or one per field that the source names; none if all would be empty.
    record: the whole record, of sources that read records whole and not their texts.
    """

    holdout_rank: float
    texts: tuple[Iterable[str] | Iterable[bytes], ...]
    record: Mapping | None = None

    @classmethod
    def from_texts(cls, holdout_rank: float, *texts: str) -> "Document":
        # An empty text beside others is one empty chunk, which digests of token stores count.
        chunks = tuple((text,) if len(text) <= CHUNK else split_chunks([text]) for text in texts)
        return cls(holdout_rank, chunks if any(texts) else ())

    @property
    def chunks(self) -> Iterator[str] | Iterator[bytes]:
        """The chunks of all its texts."""
        return itertools.chain.from_iterable(self.texts)


class Span(NamedTuple):
    """The stretch [start, end) of one file, in (decompressed) bytes; or of a TFDS split, in records."""

    path: str
    name: str
    start: int
    end: int | None  # None: to the end of the file
    size: int  # approximate bytes, by which work is divided


class BadRecord(NamedTuple):
    """A record without usable text, in place of its document."""

    path: str  # or what else says where it is
    problem: str
    offset: int | None = None  # byte of the file at which it begins


@dataclass
class BadRecords:
    """The number of bad records, and the first of them."""

    count: int = 0
    first: list[BadRecord] = field(default_factory=list)

    def add(self, record: BadRecord) -> None:
        self.count += 1
        if len(self.first) < LISTED:
            self.first.append(record)


class File(NamedTuple):
    """One file of a source, as the token store's manifest records it."""

    name: str
    size: int  # bytes
    changed: int  # modification time, ns


@dataclass(frozen=True, kw_only=True)
class Source:
    """Reads documents. Instances are small and are pickled to worker processes.

    A source lists its files (to notice a change) and the spans it can be read in (to share the work), and reads a span
    as documents.
    """

    spec: str
    fields: tuple[str, ...] = ()  # names of the texts of a document; () if each is a single text
    code: str = ""  # control code that its rows begin with
    language: str = ""  # of all its text
    records: bool = False  # whether it reads records, with text or an image at named fields
    bad_records: float = 0.0  # largest share of records without usable text that are skipped; 0: none
    start: int = 0  # bytes of each file that are read
    end: int | None = None
    origin = ""  # version of the interpreter, for sources whose files differ with it

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of its text: one, or those that name two fields."""
        return (self.language,) if self.language else self.fields

    def files(self) -> list[File]:
        """Every file, in a fixed order. Errors: DataError if there is none."""

    def spans(self, target: int) -> Iterator[Span]:
        """Everything there is to read, in order, in spans of about `target` bytes where possible."""

    def documents(self, span: Span) -> Iterator[Document | BadRecord]:
        """The documents of one span, in order. Errors: DataError for unusable text outside records."""

    def good_documents(self, span: Span, bad: BadRecords | None = None) -> Iterator[Document]:
        """The documents of one span; `bad` counts the records that are skipped. Errors: DataError if none may be."""
        for document in self.documents(span):
            if isinstance(document, Document):
                yield document
            elif not self.bad_records:
                raise DataError(f"{self.describe(document)} Or set data.on_bad_record=skip.")
            elif bad is not None:
                bad.add(document)

    def describe(self, bad: BadRecord) -> str:
        """Place and problem of a record."""
        return f"{bad.path} {bad.problem}"

    def replacing_surrogates(self) -> "Source":
        """The source with U+FFFD in place of lone surrogates."""
        return self

    def dividing(self, holdout: float) -> "Source":
        """The source as read if the share `holdout` of its documents is held out."""
        return self

    def paths(self) -> list[str]:
        """Existing files, in order; [] if it does not read plain files."""
        return []

    def shared(self, other: "Source") -> str:
        """Name of something that both sources read; empty if nothing is known to be."""
        # Real paths see through links. Disjoint ranges of bytes of one file share nothing.
        both = set(map(os.path.realpath, self.paths())) & set(map(os.path.realpath, other.paths()))
        meet = max(self.start, other.start) < min(end or sys.maxsize for end in (self.end, other.end))
        return min(both) if both and meet else self.spec if self.spec == other.spec else ""


def hash_to_unit(data: bytes) -> float:
    """Hash of a name or a text, uniform from 0 to 1."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) / 2**64


def to_bytes(chunk: str | bytes) -> bytes:
    """The bytes of a document's chunk."""
    return chunk if isinstance(chunk, bytes) else chunk.encode("utf-8")


def absolute(path: str) -> str:
    """A path as it is from any folder."""
    return path if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def split_chunks(blocks: Iterable[str], limit: int = CHUNK) -> Iterator[str]:
    """The same text in chunks of at most `limit` characters, which depend on the text alone, not on its blocks.

    A chunk ends before the whitespace that starts a new line, so that tokens of newline and indentation
    stay whole; failing that before a space, failing that anywhere.
    """
    rest = ""
    for block in blocks:
        rest += block
        # A longer text than the limit is at hand, so that where it is cut does not depend on the blocks.
        while len(rest) > limit:
            cut = _last_line_start(rest, limit) or max(rest.rfind(" ", 1, limit), 0) or limit
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _last_line_start(text: str, limit: int) -> int:
    """Index of the last run of whitespace with a newline in text[:limit]; 0 if there is none."""
    newline = text.rfind("\n", 1, limit)
    while newline > 0 and text[newline - 1].isspace():
        newline -= 1
    return max(newline, 0)
