"""The token store: text as ids on disk, read at random.

A store holds one source's tokens under one tokenizer, in two splits: `kept` and `held` (out). Each part of the source
gives, per split, a file of ids (`end doc end doc ...`) and files of what ends where in it. `store.json`, written last,
says what the store was made from, how much is in each part, and each file's CRC-32.

    store.json                 what it was made from; parts, in order
    00000.kept.tokens          uint16, or uint32 for vocabularies beyond 65,536; little-endian
    00000.kept.documents       int64 [documents, 4]: tokens, bytes, words and sentences of the part up to each one's end
    00000.kept.sentences       int64 [sentences]: tokens of the part up to each one's end, where sentences are kept
    00000.kept.fields          int64 [documents, fields]: likewise of each named field, where documents have such
    00000.held.tokens ...

Since all of them count from the part's beginning, whatever is asked for is found by index or by halving, and no file is
read to its end. `Stream` (stream.py) reads one split of several stores as if it were a single array.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.away import persistently
from input_pipeline.errors import DataError
from input_pipeline.files import copied_checksum, read_json
from input_pipeline.remote import local

FORMAT = 3
SPLITS = KEPT, HELD = "kept", "held"
TOKENS, DOCUMENTS, SENTENCES, FIELDS = "tokens", "documents", "sentences", "fields"  # files of a part's split
MANIFEST = "store.json"
STATED = {  # by the manifest
    *("format", "source", "origin", "holdout", "tokenizer", "dtype", "end", "sentences", "fields", "files", "parts")
}
READ = 1 << 30  # bytes of a store up to which every start reads them all, a third of a second's work


class Counts(NamedTuple):
    """How much a split holds.

    `tokens` counts targets: every token of text and one end token a document. `words` counts the ends of lines too.
    """

    documents: int
    tokens: int
    bytes: int
    words: int

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING = Counts(0, 0, 0, 0)


def token_dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def part_file(folder: Path, number: int, split: str, what: str) -> Path:
    """Path of one of a part's files."""
    return folder / f"{number:05d}.{split}.{what}"


class Form(NamedTuple):
    """What the files of a store hold."""

    dtype: np.dtype  # of tokens
    end: bool  # whether an end token comes before each document
    sentences: bool  # whether it is known where sentences end
    fields: tuple[str, ...]  # the names of the texts that a document is made of; () of a single text

    @classmethod
    def stated(cls, manifest: Mapping) -> "Form":
        end, sentences, fields = (manifest[name] for name in ("end", "sentences", "fields"))
        return cls(np.dtype(manifest["dtype"]), bool(end), bool(sentences), tuple(map(str, fields)))

    @property
    def files(self) -> tuple[str, ...]:
        """The files of a part's split."""
        return TOKENS, DOCUMENTS, *[SENTENCES] * self.sentences, *[FIELDS] * bool(self.fields)


@dataclass(frozen=True)
class Store:
    """A finished store."""

    folder: Path
    manifest: dict

    @classmethod
    def open(cls, folder: Path) -> "Store | None":
        """The store in `folder`, or None if there is no finished one, or one of an earlier format.

        Of its files `store.json` alone is read; the others are looked at when they are opened. Errors: DataError where
        it is damaged.
        """
        path = folder / MANIFEST
        if not persistently(path.is_file):
            return None
        try:
            manifest = persistently(lambda: read_json(path))
            if manifest["format"] < FORMAT:
                return None
            if manifest["format"] > FORMAT:
                raise DataError(
                    f"the token store {folder} is of format {manifest['format']}, and this version reads {FORMAT}; use "
                    "the version that made it, point data.store to a new folder, or delete it to tokenise again"
                )
            if missing := STATED - manifest.keys():
                raise KeyError(*sorted(missing))
            store = cls(folder, manifest)
            for split in SPLITS:
                store._all(split)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise damaged(folder, f"{MANIFEST} is not what was written ({type(error).__name__}: {error})") from None
        return store

    @property
    def bytes(self) -> int:
        """Bytes of its files."""
        return sum(size for split in SPLITS for shard in self._all(split) for _, size, _ in shard.files())

    def check_content(self) -> None:
        """Reads every file; DataError where one is missing, or holds other bytes than were written."""
        for split in SPLITS:
            for shard in self._all(split):
                shard.check_content()

    def shards(self, split: str) -> list["Shard"]:
        """The split's files that hold anything, in order."""
        return [shard for shard in self._all(split) if shard.counts.tokens]

    def _all(self, split: str) -> list["Shard"]:
        form, made_by = Form.stated(self.manifest), self.manifest["tokenizer"]
        return [
            Shard(
                folder=self.folder,
                number=number,
                split=split,
                form=form,
                counts=Counts(*map(int, part["splits"][split])),
                sentences=int(part["sentences"][split]),
                digest=part["digest"] + made_by,
                checksums=tuple(int(part["checksums"][split][what]) for what in form.files),
            )
            for number, part in enumerate(self.manifest["parts"])
        ]


def damaged(folder: Path, what: str) -> DataError:
    return DataError(
        f"the token store {folder} is damaged: {what}; bring its files back, or, where its text is still there, delete "
        "that folder to tokenise again"
    )


class Shard(NamedTuple):
    """One part's split."""

    folder: Path
    number: int
    split: str
    form: Form
    counts: Counts
    sentences: int
    digest: str  # of the part's text and of the tokenizer
    checksums: tuple[int, ...]  # CRC-32 of each of its files

    @property
    def bare(self) -> int:
        """Tokens of text alone."""
        return self.counts.tokens - self.counts.documents * self.form.end

    def _held(self, what: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Type and shape of what a file holds."""
        if what == TOKENS:
            return self.form.dtype, (self.counts.tokens,)
        if what == SENTENCES:
            return np.dtype("<i8"), (self.sentences,)
        return np.dtype("<i8"), (self.counts.documents, 4 if what == DOCUMENTS else len(self.form.fields))

    def files(self) -> Iterator[tuple[str, int, int]]:
        """Each of its files: what it holds, its bytes and its CRC-32."""
        for what, expected in zip(self.form.files, self.checksums, strict=True):
            dtype, shape = self._held(what)
            yield what, int(np.prod(shape)) * dtype.itemsize, expected

    def path(self, what: str) -> Path:
        return part_file(self.folder, self.number, self.split, what)

    def open(self, what: str) -> np.ndarray:
        """The content of one of its files, mapped; of an object store's file, that of a copy on this machine.

        Errors: DataError where it is missing, or of another size.
        """
        persistently(lambda: self._check_size(what))
        dtype, shape = self._held(what)
        if not np.prod(shape):  # no map of an empty file
            return np.zeros(shape, dtype)
        return persistently(lambda: np.memmap(local(self.path(what)), dtype, "r", shape=shape))

    def _check_size(self, what: str) -> None:
        dtype, shape = self._held(what)
        path, size = self.path(what), int(np.prod(shape)) * dtype.itemsize
        try:
            actual = path.stat().st_size
        except FileNotFoundError:
            raise damaged(self.folder, f"{path.name} is missing") from None
        if actual != size:
            raise damaged(self.folder, f"{path.name} has {actual} bytes instead of {size}")

    def check_content(self) -> None:
        """Raises DataError where a file is missing, or holds other bytes than were written."""
        for what, _, expected in self.files():
            persistently(lambda what=what: self._check_size(what))
            actual = persistently(lambda what=what, expected=expected: copied_checksum(self.path(what), expected))
            if actual != expected:
                raise damaged(
                    self.folder,
                    f"{self.path(what).name} has other bytes than were written (CRC-32 {actual:08x} instead of "
                    f"{expected:08x})",
                )
        documents = self.open(DOCUMENTS)
        last = documents[-1].tolist() if len(documents) else [0, 0, 0, 0]
        stated, found = (*self.counts, self.sentences), (len(documents), *last)
        if found != stated:
            what = f"{MANIFEST} counts {stated} in part {self.number} where its files have {found}"
            raise damaged(self.folder, what)
