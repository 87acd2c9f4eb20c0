"""A finite pass over a split, every token of it scored once."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from input_pipeline.batching import loader
from input_pipeline.batching.train_batches import Batching
from input_pipeline.packing.concat import Bare, read_at
from input_pipeline.packing.raw import Raw, RawRows
from input_pipeline.token_store.store import Counts
from input_pipeline.token_store.stream import Stream
from input_pipeline.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class Overlapping:
    """Windows of R ids every `stride` ids: the first scores all of its targets, later ones their last `stride`.

    So every target is scored once, with at least R - stride ids before it wherever the split has them.
    """

    stream: Stream | Bare
    targets: int  # how many of the stream's ids are read, and of causal modelling those after them predicted
    length: int
    stride: int

    def __len__(self) -> int:
        return (self.targets > 0) + max(0, -(-(self.targets - self.length) // self.stride))

    def read(self, rows: np.ndarray) -> Raw:
        """Windows `rows` (int64 [n])."""
        places = rows[:, None] * self.stride + np.arange(self.length)  # [n, R], in the stream
        fresh = (rows[:, None] == 0) | (np.arange(self.length) >= self.length - self.stride)
        raw = read_at(self.stream, rows * self.stride, self.length).where(places < self.targets)
        return raw._replace(scored=raw.scored & fresh)


@dataclass(frozen=True)
class Rowwise:
    """Batches of the sources' rows, in proportion, so that the first batches have their share of every source.

    Each source's rows come in order. The last batch is filled up with padding, as are rows beyond a batch's size.
    """

    batching: Batching
    sources: Sequence[RawRows]

    def __len__(self) -> int:
        return -(-self._rows // self.batching.batch_size)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        batching = self.batching
        batch = batching.empty()
        wanted = n * batching.batch_size + batching.rows
        there = np.flatnonzero((batching.rows < batching.batch_size) & (wanted < self._rows))
        if self._order is not None:
            wanted[there] = self._order[wanted[there]]
        begin = 0
        for source in self.sources:
            slots = there[(begin <= wanted[there]) & (wanted[there] < begin + len(source))]
            if len(slots):
                raw = source.read(wanted[slots] - begin)
                batching.objective.fill(batch, slots, raw, batching.keys(wanted[slots]))
            begin += len(source)
        return batch

    @functools.cached_property
    def _rows(self) -> int:
        return sum(map(len, self.sources))

    @functools.cached_property
    def _order(self) -> np.ndarray | None:
        """The row, counted through the sources, that comes at each place: int64 [rows]; None where there is one."""
        if len(self.sources) == 1:
            return None
        shares = [(np.arange(len(source)) + 0.5) / len(source) for source in self.sources]
        return np.argsort(np.concatenate(shares), kind="stable")


@dataclass(frozen=True)
class Lanewise:
    """Contiguous streams: lane r predicts from ids r L .. (r + 1) L - 1 of the split, L = ceil(targets / B)."""

    batching: Batching
    stream: Stream
    targets: int  # how many of the stream's ids are predicted, from the second on

    @property
    def lane(self) -> int:
        return -(-self.targets // self.batching.batch_size)

    @property
    def raw_length(self) -> int:
        return self.batching.objective.raw_length(self.batching.length)

    def __len__(self) -> int:
        return -(-self.lane // self.raw_length)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        batching = self.batching
        batch = batching.empty()
        within = n * self.raw_length + np.arange(self.raw_length)  # [R], in the lane
        starts = batching.rows * self.lane
        inside = (within < self.lane) & (starts[:, None] + within < self.targets)  # [n, R]
        raw = read_at(self.stream, starts + n * self.raw_length, self.raw_length).where(inside)
        batching.objective.fill(batch, np.arange(len(starts)), raw, batching.keys(batching.rows, n))
        batch["reset"][:] = n == 0
        return batch


def predicted(stream: Stream, tokenizer: Tokenizer) -> Counts:
    """How much of a stream is predicted: where nothing precedes the text, its first token is only read."""
    whole = stream.counts
    if tokenizer.end_id is None:
        first, lengths = np.empty(1, np.int32), tokenizer.byte_lengths
        stream.copy(0, first)
        whole = whole._replace(tokens=whole.tokens - 1)
        if lengths is not None:
            whole = whole._replace(bytes=whole.bytes - int(lengths[first[0]]))
    return whole


class Evaluation:
    """The batches of a pass over a split, and the totals to divide by.

    `whole` counts a pass over all rows. tokens: targets scored. bytes: UTF-8 bytes of their text, or bytes of images;
    None where the tokenizer rewrites text, so that ids stand for less than all of it. words: whitespace-separated
    words and line ends of the text, as `writer.word_count` has them; None where only a part is scored.
    """

    def __init__(self, scored: Rowwise | Lanewise, whole: Counts, tokenizer: Tokenizer, *, limit: int, prefetch: int):
        self._scored, self._tokenizer, self._prefetch = scored, tokenizer, prefetch
        self._number = min(limit, len(scored)) if limit else len(scored)
        self._counts = whole if self._number == len(scored) else None

    def __len__(self) -> int:
        """Number of batches."""
        return self._number

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """The batches in order, all of one shape: this host's rows of each."""
        reader = loader.read(self._scored, 0, self._number, workers=0, prefetch=self._prefetch)
        try:
            yield from reader
        finally:
            reader.close()

    @property
    def tokens(self) -> int:
        return self._counts.tokens if self._counts else self._part[0]

    @property
    def bytes(self) -> int | None:
        if self._tokenizer.byte_lengths is None:
            return None
        return self._counts.bytes if self._counts else self._part[1]

    @property
    def words(self) -> int | None:
        return self._counts.words if self._counts else None

    @functools.cached_property
    def _part(self) -> tuple[int, int | None]:
        """Targets and bytes of the first batches, all hosts' rows."""
        batching = self._scored.batching
        everything = dataclasses.replace(
            self._scored, batching=dataclasses.replace(batching, rows=np.arange(batching.batch_size))
        )
        tokens, size, lengths = 0, 0, self._tokenizer.byte_lengths
        for n in range(self._number):
            batch = everything[n]
            targets = batch["targets"][batch["weights"] > 0]
            tokens += len(targets)
            size += 0 if lengths is None else int(lengths[targets].sum())
        return tokens, None if lengths is None else size
