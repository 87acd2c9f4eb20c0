"""The token store: text as ids on disk, read at random.

A store holds one source's tokens under one tokenizer, in two splits: `kept` and `held` (out). Each part of
the source gives, per split, a file of ids (`end doc end doc ...`) and a file of the documents' sizes.
`store.json`, written last, says what the store was made from, how much is in each part, and each file's CRC-32.

    store.json                 what it was made from; parts, in order
    00000.kept.tokens          uint16, or uint32 for vocabularies beyond 65,536; little-endian
    00000.kept.documents       int64 [documents, 3]: tokens with the end token before them, bytes, words and line ends
    00000.held.tokens ...

`Stream` reads one split, of one store or of several in a row, as if it were a single array.
"""

import bisect
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.files import checksum, read_json

FORMAT = 2
SPLITS = KEPT, HELD = "kept", "held"
FILES = TOKENS, DOCUMENTS = "tokens", "documents"  # of a part's split
MANIFEST = "store.json"
STATED = {"format", "source", "origin", "holdout", "tokenizer", "dtype", "files", "parts"}  # by the manifest
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
    """Path of a part's `tokens` or `documents` file."""
    return folder / f"{number:05d}.{split}.{what}"


@dataclass(frozen=True)
class Store:
    """A finished store."""

    folder: Path
    manifest: dict

    @classmethod
    def open(cls, folder: Path) -> "Store | None":
        """The store in `folder`, or None if there is no finished one. Errors: DataError where files are damaged."""
        path = folder / MANIFEST
        if not path.is_file():
            return None
        try:
            manifest = read_json(path)
            if manifest["format"] != FORMAT:
                raise DataError(
                    f"the token store {folder} is of format {manifest['format']}, this version reads {FORMAT}; delete "
                    "it to tokenise again"
                )
            if missing := STATED - manifest.keys():
                raise KeyError(*sorted(missing))
            store = cls(folder, manifest)
            shards = [shard for split in SPLITS for shard in store._all(split)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise _damaged(folder, f"{MANIFEST} is not what was written ({type(error).__name__}: {error})") from None
        for shard in shards:
            shard.check_sizes()
        return store

    @property
    def bytes(self) -> int:
        """Bytes of its files."""
        return sum(size for split in SPLITS for shard in self._all(split) for _, size, _ in shard.files())

    def check_content(self) -> None:
        """Reads every file; DataError where one holds other bytes than were written."""
        for split in SPLITS:
            for shard in self._all(split):
                shard.check_content()

    def shards(self, split: str) -> list["Shard"]:
        """The split's files that hold anything, in order."""
        return [shard for shard in self._all(split) if shard.counts.tokens]

    def _all(self, split: str) -> list["Shard"]:
        dtype, made_by = np.dtype(self.manifest["dtype"]), self.manifest["tokenizer"]
        return [
            Shard(self.folder, number, split, dtype, Counts(*part["splits"][split]), *rest)
            for number, part in enumerate(self.manifest["parts"])
            for rest in [(part["digest"] + made_by, tuple(map(int, part["checksums"][split])))]
        ]


def _damaged(folder: Path, what: str) -> DataError:
    return DataError(
        f"the token store {folder} is damaged: {what}; bring its files back, or delete that folder to tokenise again"
    )


class Shard(NamedTuple):
    """One part's split."""

    folder: Path
    number: int
    split: str
    dtype: np.dtype
    counts: Counts
    digest: str  # of the part's text and of the tokenizer
    checksums: tuple[int, int]  # CRC-32 of its tokens' and its documents' file

    def files(self) -> Iterator[tuple[Path, int, int]]:
        """Path, bytes and CRC-32 of its two files."""
        sizes = self.counts.tokens * self.dtype.itemsize, self.counts.documents * 24
        for what, size, expected in zip(FILES, sizes, self.checksums, strict=True):
            yield part_file(self.folder, self.number, self.split, what), size, expected

    def check_sizes(self) -> None:
        """Raises DataError where a file is missing, or of another size than was written."""
        for path, size, _ in self.files():
            try:
                actual = path.stat().st_size
            except FileNotFoundError:
                raise _damaged(self.folder, f"{path.name} is missing") from None
            if actual != size:
                raise _damaged(self.folder, f"{path.name} has {actual} bytes instead of {size}")

    def check_content(self) -> None:
        """Raises DataError where a file holds other bytes than were written."""
        for path, _, expected in self.files():
            actual = checksum(path)
            if actual != expected:
                what = f"{path.name} has other bytes than were written (CRC-32 {actual:08x} instead of {expected:08x})"
                raise _damaged(self.folder, what)
        sizes = self.documents() if self.counts.documents else np.zeros((0, 3), np.int64)  # no map of an empty file
        counted = Counts(len(sizes), *map(int, sizes.sum(axis=0)))
        if counted != self.counts:
            what = f"{MANIFEST} counts {tuple(self.counts)} in part {self.number} where its files have {tuple(counted)}"
            raise _damaged(self.folder, what)

    def tokens(self) -> np.ndarray:
        path = part_file(self.folder, self.number, self.split, TOKENS)
        return np.memmap(path, self.dtype, "r", shape=(self.counts.tokens,))

    def documents(self) -> np.ndarray:
        path = part_file(self.folder, self.number, self.split, DOCUMENTS)
        return np.memmap(path, "<i8", "r", shape=(self.counts.documents, 3))


class Stream:
    """Shards in a row as one circular array of ids, `end doc end doc ...`, of length N = `tokens`.

    Since it begins with an end token and goes on with its own beginning, id N is the end token that closes
    the last document.
    """

    OPEN_FILES = 256  # each open map holds a file descriptor, of which a process often has only 1,024

    def __init__(self, shards: Sequence[Shard]):
        self.shards = tuple(shards)
        self.counts = sum((shard.counts for shard in shards), NOTHING)
        self._ends = np.cumsum([shard.counts.tokens for shard in shards]).tolist()
        self._open = functools.lru_cache(self.OPEN_FILES)(self._map)

    def __reduce__(self):
        return Stream, (self.shards,)

    def _map(self, index: int) -> np.ndarray:
        return self.shards[index].tokens()

    @property
    def tokens(self) -> int:
        return self.counts.tokens

    @functools.cached_property
    def identity(self) -> str:
        """A hash of text, split and tokens, for what is derived from them."""
        content = [(shard.folder.name, shard.split, shard.counts, shard.digest) for shard in self.shards]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()

    def copy(self, start: int, out: np.ndarray) -> None:
        """Fills `out`, [n] of any integer type, with ids start .. start + n - 1 (modulo N)."""
        start, filled = start % self.tokens, 0
        index = bisect.bisect_right(self._ends, start)
        while filled < len(out):
            shard = self._open(index)
            offset = start - (self._ends[index - 1] if index else 0)
            ids = shard[offset : offset + len(out) - filled]
            out[filled : filled + len(ids)] = ids
            filled += len(ids)
            start, index = (start + len(ids), index + 1) if index + 1 < len(self.shards) else (0, 0)

    def documents(self) -> np.ndarray:
        """Tokens of each document with the end token before it, int64 [documents]."""
        lengths = [np.asarray(shard.documents()[:, 0]) for shard in self.shards]
        return np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
