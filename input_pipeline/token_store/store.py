"""The token store: text as ids on disk, read at random.

A store holds one source's tokens under one tokenizer, in two splits: `kept` and `held` (out). Each part of the source
gives, per split, a file of ids (`end doc end doc ...`) and files of the positions at which things end. `store.json`,
written last, holds the store's settings, the counts of each part and each file's CRC-32.

    store.json                 settings; parts, in order
    00000.kept.tokens          uint16, or uint32 for vocabularies beyond 65,536; little-endian
    00000.kept.documents       int64 [documents, 4]: tokens, bytes, words and sentences of the part up to each one's end
    00000.kept.sentences       int64 [sentences]: tokens of the part up to each one's end, if sentences are kept
    00000.kept.fields          int64 [documents, fields]: likewise of each named field, if documents have such
    00000.held.tokens ...

All counts start at the part's beginning, so that anything is found by index or bisection and no file is read to its
end. `Stream` (stream.py) reads one split of several stores as a single array.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import checksum, info, local_copy, read_json

FORMAT = 3
SPLITS = KEPT, HELD = "kept", "held"
TOKENS, DOCUMENTS, SENTENCES, FIELDS = "tokens", "documents", "sentences", "fields"  # kinds of files
MANIFEST = "store.json"
READ = 1 << 30  # bytes of a store up to which every start verifies them all: a third of a second


class Counts(NamedTuple):
    """Size of a split.

    `tokens` counts targets: every token of text and one end token a document. `words` includes line ends.
    """

    documents: int
    tokens: int
    bytes: int
    words: int

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING = Counts(0, 0, 0, 0)


def part_file(folder: Path, number: int, split: str, kind: str) -> Path:
    """Path of one of a part's files."""
    return folder / f"{number:05d}.{split}.{kind}"


class Layout(NamedTuple):
    """Types and kinds of a store's files."""

    dtype: np.dtype  # of tokens
    end: bool  # whether an end token precedes each document
    sentences: bool  # whether the ends of sentences are kept
    fields: tuple[str, ...]  # names of the texts of a document; () for a single text

    @classmethod
    def of(cls, manifest: Mapping) -> "Layout":
        end, sentences, fields = (manifest[name] for name in ("end", "sentences", "fields"))
        return cls(np.dtype(manifest["dtype"]), end, bool(sentences), tuple(fields))

    @property
    def files(self) -> tuple[str, ...]:
        """Kinds of a split's files."""
        return TOKENS, DOCUMENTS, *[SENTENCES] * self.sentences, *[FIELDS] * bool(self.fields)


class Shard(NamedTuple):
    """One split of one part."""

    folder: Path
    number: int
    split: str
    layout: Layout
    counts: Counts
    sentences: int
    digest: str  # of the part's text and of the tokenizer
    checksums: tuple[int, ...]  # CRC-32 of each of its files

    @property
    def bare(self) -> int:
        """Tokens without end tokens."""
        return self.counts.tokens - self.counts.documents * self.layout.end

    def _array(self, kind: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Type and shape of a file's array."""
        if kind == TOKENS:
            return self.layout.dtype, (self.counts.tokens,)
        # Ends are cumulative, so that a bisection finds what holds a token.
        if kind == SENTENCES:
            return np.dtype("<i8"), (self.sentences,)
        return np.dtype("<i8"), (self.counts.documents, 4 if kind == DOCUMENTS else len(self.layout.fields))

    def size(self, kind: str) -> int:
        """Bytes of one of its files."""
        dtype, shape = self._array(kind)
        return int(np.prod(shape)) * dtype.itemsize

    def path(self, kind: str) -> Path:
        return part_file(self.folder, self.number, self.split, kind)

    def open(self, kind: str) -> np.ndarray:
        """The array of one of its files, memory-mapped; a store's file from a local copy. Errors: DataError."""
        (dtype, shape), path, size = self._array(kind), self.path(kind), self.size(kind)
        try:
            actual = info(path).size
        except FileNotFoundError:
            actual = 0
        if actual != size:
            raise damaged(self.folder, f"{path.name} has {actual} bytes instead of {size}")
        # An empty file cannot be mapped.
        return np.memmap(local_copy(path), dtype, "r", shape=shape) if size else np.zeros(shape, dtype)

    def check_content(self) -> None:
        """Compares its files with their checksums. Errors: DataError."""
        for kind, expected in zip(self.layout.files, self.checksums, strict=True):
            self.open(kind)
            path = self.path(kind)
            if checksum(local_copy(path)) != expected:
                raise damaged(self.folder, f"{path.name} has another checksum than when it was written")


def damaged(folder: Path, what: str) -> DataError:
    return DataError(f"data.store={folder} is damaged: {what}. Restore its files, or delete it to tokenise again.")


@dataclass(frozen=True)
class Store:
    """A finished store."""

    folder: Path
    manifest: dict

    @classmethod
    def open(cls, folder: Path) -> "Store | None":
        """The store in `folder`; None if it is unfinished or of an earlier format.

        Reads only `store.json`; other files are checked when they are opened.
        """
        path = folder / MANIFEST
        manifest = read_json(path) if path.is_file() else {"format": 0}
        return cls(folder, manifest) if manifest["format"] >= FORMAT else None

    def shards(self, split: str) -> list[Shard]:
        """The split's non-empty parts, in order."""
        return [shard for shard in self._all() if shard.split == split and shard.counts.tokens]

    @property
    def bytes(self) -> int:
        """Bytes of its files."""
        return sum(shard.size(kind) for shard in self._all() for kind in shard.layout.files)

    def check_content(self) -> None:
        """Compares every file with its checksum. Errors: DataError."""
        for shard in self._all():
            shard.check_content()

    def _all(self) -> Iterator[Shard]:
        layout = Layout.of(self.manifest)
        for number, part in enumerate(self.manifest["parts"]):
            for split in SPLITS:
                yield Shard(
                    folder=self.folder,
                    number=number,
                    split=split,
                    layout=layout,
                    counts=Counts(*part["splits"][split]),
                    sentences=part["sentences"][split],
                    digest=part["digest"] + self.manifest["tokenizer"],
                    checksums=tuple(part["checksums"][split][kind] for kind in layout.files),
                )
