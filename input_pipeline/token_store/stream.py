"""One split, of one store or of several in a row, as a single array of ids."""

import bisect
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.token_store.store import DOCUMENTS, FIELDS, NOTHING, SENTENCES, TOKENS, Shard


class Stream:
    """Shards in a row as one circular array of ids, `end doc end doc ...`, of length N = `tokens`.

    Since it begins with an end token and goes on with its own beginning, id N is the end token that closes
    the last document. The bare stream is the same without end tokens, `doc doc ...`, of length `bare_tokens`.
    Documents are numbered through all shards. A file is looked at when it is first needed.
    """

    OPEN_FILES = 256  # each open map holds a file descriptor, of which a process often has only 1,024

    def __init__(self, shards: Sequence[Shard]):
        self.shards = tuple(shards)
        self.counts = sum((shard.counts for shard in shards), NOTHING)
        self.bare_tokens = sum(shard.bare for shard in shards)
        self._ends = list(itertools.accumulate(shard.counts.tokens for shard in shards))
        self._bare_ends = list(itertools.accumulate(shard.bare for shard in shards))
        self._document_ends = list(itertools.accumulate(shard.counts.documents for shard in shards))
        self._open = functools.lru_cache(self.OPEN_FILES)(self._map)

    def __reduce__(self):
        return Stream, (self.shards,)

    def _map(self, index: int, what: str) -> np.ndarray:
        return self.shards[index].open(what)

    @property
    def tokens(self) -> int:
        return self.counts.tokens

    @functools.cached_property
    def identity(self) -> str:
        """A hash of text, split and tokens, for what is derived from them."""
        content = [(shard.folder.name, shard.split, shard.counts, shard.digest) for shard in self.shards]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()

    @functools.cached_property
    def content(self) -> int:
        """The sum of its documents' hashes, in whatever order and files they lie; all of it is read, once.

        Of several streams together it is the sum of theirs.
        """
        found = 0
        for shard in self.shards:
            ids = shard.open(TOKENS)
            for begin, end in itertools.pairwise([0, *shard.open(DOCUMENTS)[:, 0].tolist()]):
                found += int.from_bytes(hashlib.blake2b(ids[begin:end].data, digest_size=16).digest())
        return found

    def copy(self, start: int, out: np.ndarray) -> None:
        """Fills `out`, [n] of any integer type, with ids start .. start + n - 1 (modulo N)."""
        start, filled = start % self.tokens, 0
        index = bisect.bisect_right(self._ends, start)
        while filled < len(out):
            shard = self._open(index, TOKENS)
            offset = start - _before(self._ends, index)
            ids = shard[offset : offset + len(out) - filled]
            out[filled : filled + len(ids)] = ids
            filled += len(ids)
            start, index = (start + len(ids), index + 1) if index + 1 < len(self.shards) else (0, 0)

    def copy_bare(self, start: int, out: np.ndarray) -> None:
        """Fills `out`, [n] of any integer type, with ids start .. start + n - 1 of the bare stream (modulo that)."""
        start, filled = start % self.bare_tokens, 0
        index = bisect.bisect_right(self._bare_ends, start)
        while filled < len(out):
            offset = start - _before(self._bare_ends, index)
            ids = self._bare(index, offset, min(len(out) - filled, self.shards[index].bare - offset))
            out[filled : filled + len(ids)] = ids
            filled += len(ids)
            start, index = (start + len(ids), index + 1) if index + 1 < len(self.shards) else (0, 0)

    def _bare(self, index: int, offset: int, count: int) -> np.ndarray:
        """Ids of a shard from `offset` on, end tokens not counted."""
        ids = self._open(index, TOKENS)
        if not self.shards[index].form.end or not count:
            return ids[offset : offset + count]
        ends = self._open(index, DOCUMENTS)[:, 0]

        def document(place: int) -> int:
            return bisect.bisect_right(range(len(ends)), place, key=lambda d: int(ends[d]) - (d + 1))

        first, last = document(offset), document(offset + count - 1)
        begin = offset + first + 1  # with the end tokens of all documents up to the first
        inside = ids[begin : offset + count + last + 1]
        return np.delete(inside, np.asarray(ends[first:last]) - begin) if last > first else inside

    def document(self, number: int) -> tuple[int, int]:
        """Where the ids of a document lie in the stream, without its end token: the first, and how many."""
        index, within = self._place(number)
        ends = self._open(index, DOCUMENTS)
        begin = int(ends[within - 1, 0]) if within else 0
        begin, end = begin + self.shards[index].form.end, int(ends[within, 0])
        return _before(self._ends, index) + begin, end - begin

    def sentences(self, number: int) -> np.ndarray:
        """Where the sentences of a document end, in ids from its first one, int64 [sentences].

        A document without text has none. Errors: DataError where the store keeps none.
        """
        index, within = self._place(number)
        if not self.shards[index].form.sentences:
            raise DataError(
                f"the token store {self.shards[index].folder} does not say where sentences end; set data.sentences"
            )
        ends = self._open(index, DOCUMENTS)
        begin, before = (int(ends[within - 1, 0]), int(ends[within - 1, 3])) if within else (0, 0)
        return self._open(index, SENTENCES)[before : int(ends[within, 3])] - (begin + self.shards[index].form.end)

    def fields(self, number: int) -> Mapping[str, tuple[int, int]]:
        """Where the ids of each named field of a document lie in the stream: the first, and how many; {} without."""
        index, within = self._place(number)
        names = self.shards[index].form.fields
        if not names:
            return {}
        start, _ = self.document(number)
        ends = [start, *(self._open(index, FIELDS)[within] + _before(self._ends, index)).tolist()]
        return {name: (a, b - a) for name, (a, b) in zip(names, itertools.pairwise(ends), strict=True)}

    def _place(self, number: int) -> tuple[int, int]:
        """The shard of a document, and its number there."""
        if not 0 <= number < self.counts.documents:
            raise IndexError(f"document {number} of {self.counts.documents}")
        index = bisect.bisect_right(self._document_ends, number)
        return index, number - _before(self._document_ends, index)

    def each_documents(self) -> Iterator[np.ndarray]:
        """Tokens of each document with the end token before it, int64 [documents], shard by shard."""
        for shard in self.shards:
            yield np.diff(shard.open(DOCUMENTS)[:, 0], prepend=0)

    def documents(self) -> np.ndarray:
        """Tokens of each document with the end token before it, int64 [documents]. All of the shards are read."""
        return np.concatenate([np.zeros(0, np.int64), *self.each_documents()])


def _before(ends: Sequence[int], index: int) -> int:
    """How much lies before what ends at ends[index]."""
    return ends[index - 1] if index else 0
