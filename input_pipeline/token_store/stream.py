"""One split, of one store or of several in a row, as a single array of ids."""

import bisect
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from input_pipeline.token_store.store import DOCUMENTS, FIELDS, NOTHING, SENTENCES, TOKENS, Shard


class Stream:
    """Shards in a row as one circular array of ids, `end doc end doc ...`, of length N = `tokens`.

    It begins with an end token and wraps around, so id N is the end token that closes the last document. The bare
    stream is the same without end tokens, `doc doc ...`, of length `bare_tokens`. Documents are numbered through all
    shards. Files are opened when they are first needed.
    """

    OPEN_FILES = 256  # each memory map needs a file descriptor; the usual limit is 1,024

    def __init__(self, shards: Sequence[Shard]):
        self.shards = tuple(shards)
        self.counts = sum((shard.counts for shard in shards), NOTHING)
        self.bare_tokens = sum(shard.bare for shard in shards)
        # Ends of the shards in tokens, bare tokens and documents of the stream, for bisection.
        self._ends = list(itertools.accumulate(shard.counts.tokens for shard in shards))
        self._bare_ends = list(itertools.accumulate(shard.bare for shard in shards))
        self._document_ends = list(itertools.accumulate(shard.counts.documents for shard in shards))
        self._open = functools.lru_cache(self.OPEN_FILES)(self._map)

    def __reduce__(self):
        return Stream, (self.shards,)

    def _map(self, index: int, kind: str) -> np.ndarray:
        return self.shards[index].open(kind)

    @property
    def tokens(self) -> int:
        return self.counts.tokens

    @functools.cached_property
    def identity(self) -> str:
        """Hash of text, split and tokens: the key of index caches."""
        content = [(shard.folder.name, shard.split, shard.counts, shard.digest) for shard in self.shards]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()

    @functools.cached_property
    def content(self) -> int:
        """Sum of the documents' hashes, whatever their order and files. Reads everything, once.

        The sum over several streams is that of their union.
        """
        # A sum of 128-bit hashes does not depend on their order.
        total = 0
        for shard in self.shards:
            ids = shard.open(TOKENS)
            for begin, end in itertools.pairwise([0, *shard.open(DOCUMENTS)[:, 0].tolist()]):
                total += int.from_bytes(hashlib.blake2b(ids[begin:end].data, digest_size=16).digest())
        return total

    def copy(self, start: int, out: np.ndarray) -> None:
        """Fills `out`, [n] of any integer type, with ids start .. start + n - 1 (modulo N)."""
        _fill(out, start, self._ends, self._ids)

    def _ids(self, index: int, offset: int, count: int) -> np.ndarray:
        return self._open(index, TOKENS)[offset : offset + count]

    def copy_bare(self, start: int, out: np.ndarray) -> None:
        """Fills `out`, [n] of any integer type, with ids start .. start + n - 1 of the bare stream (modulo that)."""
        _fill(out, start, self._bare_ends, self._bare)

    def _bare(self, index: int, offset: int, count: int) -> np.ndarray:
        """`count` ids of a shard from `offset` on, both without end tokens."""
        ids = self._open(index, TOKENS)
        if not self.shards[index].layout.end or not count:
            return ids[offset : offset + count]
        ends = self._open(index, DOCUMENTS)[:, 0]

        # Document d is preceded by d + 1 end tokens, its own included: without them it ends at ends[d] - (d + 1).
        def document(place: int) -> int:
            return bisect.bisect_right(range(len(ends)), place, key=lambda d: int(ends[d]) - (d + 1))

        first, last = document(offset), document(offset + count - 1)
        begin = offset + first + 1  # plus one end token for each document up to the first
        inside = ids[begin : offset + count + last + 1]
        return np.delete(inside, np.asarray(ends[first:last]) - begin) if last > first else inside

    def document(self, number: int) -> tuple[int, int]:
        """(start, length) of a document's ids in the stream, without its end token."""
        index, within = self._place(number)
        ends = self._open(index, DOCUMENTS)
        begin = int(ends[within - 1, 0]) if within else 0
        # An end token, if the layout has them, stands before the document.
        begin, end = begin + self.shards[index].layout.end, int(ends[within, 0])
        return _before(self._ends, index) + begin, end - begin

    def sentences(self, number: int) -> np.ndarray:
        """Ends of a document's sentences, in ids from its first one, int64 [sentences], if the store keeps them."""
        index, within = self._place(number)
        # The file counts from the part's beginning; a row of DOCUMENTS says where a document's sentences are in it.
        ends = self._open(index, DOCUMENTS)
        begin, before = (int(ends[within - 1, 0]), int(ends[within - 1, 3])) if within else (0, 0)
        return self._open(index, SENTENCES)[before : int(ends[within, 3])] - (begin + self.shards[index].layout.end)

    def fields(self, number: int) -> Mapping[str, tuple[int, int]]:
        """(start, length) in the stream of each named field of a document; {} without fields."""
        index, within = self._place(number)
        names = self.shards[index].layout.fields
        if not names:
            return {}
        # A field begins where the one before it ends, the first where the document does.
        start, _ = self.document(number)
        ends = [start, *(self._open(index, FIELDS)[within] + _before(self._ends, index)).tolist()]
        return {name: (a, b - a) for name, (a, b) in zip(names, itertools.pairwise(ends), strict=True)}

    def _place(self, number: int) -> tuple[int, int]:
        """Shard of a document and its number there."""
        assert 0 <= number < self.counts.documents, f"document {number} of {self.counts.documents}"
        index = bisect.bisect_right(self._document_ends, number)
        return index, number - _before(self._document_ends, index)

    def iter_document_sizes(self) -> Iterator[np.ndarray]:
        """Tokens of each document with the end token before it, int64 [documents], shard by shard."""
        for shard in self.shards:
            yield np.diff(shard.open(DOCUMENTS)[:, 0], prepend=0)

    def document_sizes(self) -> np.ndarray:
        """Tokens of each document with the end token before it, int64 [documents]. Reads all shards."""
        return np.concatenate([np.zeros(0, np.int64), *self.iter_document_sizes()])


def _before(ends: Sequence[int], index: int) -> int:
    """Start of the interval that ends at ends[index]."""
    return ends[index - 1] if index else 0


def _fill(out: np.ndarray, start: int, ends: Sequence[int], read: Callable[[int, int, int], np.ndarray]) -> None:
    """Fills `out` from place `start` of a circle of shards, which end at `ends`.

    read: (shard, offset in it, count) -> ids.
    """
    start, filled = start % ends[-1], 0
    index = bisect.bisect_right(ends, start)
    while filled < len(out):
        ids = read(index, start - _before(ends, index), min(len(out) - filled, ends[index] - start))
        out[filled : filled + len(ids)] = ids
        filled += len(ids)
        # The stream is circular: the first shard follows the last.
        start, index = (ends[index], index + 1) if index + 1 < len(ends) else (0, 0)
