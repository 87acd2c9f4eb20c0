"""Evaluation batches: a finite pass over a split that scores each token once, and sources of pairs to decode."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from input_pipeline.batching import loader
from input_pipeline.batching.train import BatchContext, SegmentBatches
from input_pipeline.packing.concat import RawRows, read_windows
from input_pipeline.packing.seq2seq import Plan, Texts
from input_pipeline.token_store.store import Counts
from input_pipeline.token_store.stream import Stream
from input_pipeline.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class EvalRows:
    """Batches of the sources' rows, interleaved in proportion: the first batches have their share of each source.

    Each source's rows come in order. The last batch is filled up with padding, as are rows beyond the batch size.
    """

    context: BatchContext
    sources: Sequence[RawRows]

    def __len__(self) -> int:
        return -(-self._rows // self.context.batch_size)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        context = self.context
        batch = context.empty()
        # Rows beyond the batch size only let devices share a batch evenly.
        wanted = n * context.batch_size + context.rows
        used = np.flatnonzero((context.rows < context.batch_size) & (wanted < self._rows))
        if self._order is not None:
            wanted[used] = self._order[wanted[used]]
        begin = 0
        for source in self.sources:
            slots = used[(begin <= wanted[used]) & (wanted[used] < begin + len(source))]
            if len(slots):
                raw = source.read(wanted[slots] - begin)
                # Keys depend on the row alone, so that every evaluation of a run sees the same corruption.
                context.objective.fill(batch, slots, raw, context.keys(wanted[slots]))
            begin += len(source)
        return batch

    @functools.cached_property
    def _rows(self) -> int:
        return sum(map(len, self.sources))

    @functools.cached_property
    def _order(self) -> np.ndarray | None:
        """The row, counted through the sources, at each place: int64 [rows]; None with one source."""
        if len(self.sources) == 1:
            return None
        # Row i of a source with m rows is due at (i + 1/2) / m of the pass.
        shares = [(np.arange(len(source)) + 0.5) / len(source) for source in self.sources]
        return np.argsort(np.concatenate(shares), kind="stable")


@dataclass(frozen=True)
class EvalStream:
    """Contiguous streams: lane r predicts from ids r L .. (r + 1) L - 1 of the split, L = ceil(targets / B)."""

    context: BatchContext
    stream: Stream
    targets: int  # ids of the stream that are predicted, from the second on

    @property
    def lane(self) -> int:
        return -(-self.targets // self.context.batch_size)

    @property
    def raw_length(self) -> int:
        return self.context.objective.raw_length(self.context.length)

    def __len__(self) -> int:
        return -(-self.lane // self.raw_length)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        context = self.context
        batch = context.empty()
        # Lanes are rounded up, so the last one may end early; its rows are padding from there on.
        within = n * self.raw_length + np.arange(self.raw_length)  # [R], in the lane
        starts = context.rows * self.lane
        inside = (within < self.lane) & (starts[:, None] + within < self.targets)  # [n, R]
        raw = read_windows(self.stream, starts + n * self.raw_length, self.raw_length).where(inside)
        context.objective.fill(batch, np.arange(len(starts)), raw, context.keys(context.rows, n))
        batch["reset"][:] = n == 0
        return batch


EvalBatches = EvalRows | EvalStream | SegmentBatches


class Evaluation:
    """A pass over a split, or over its first `limit` batches (0: all), and the totals to divide by.

    whole: counts of a pass over all rows. tokens: targets scored.
    bytes: UTF-8 bytes of their text, or bytes of images; None if the tokenizer normalises text, whose size is lost.
    words: words and line ends of the text; None for a part of a split.
    """

    def __init__(self, batches: EvalBatches, whole: Counts, tokenizer: Tokenizer, *, limit: int, prefetch: int):
        self._batches, self._tokenizer, self._prefetch = batches, tokenizer, prefetch
        self._number = min(limit, len(batches)) if limit else len(batches)
        self._counts = whole if self._number == len(batches) else None

    def __len__(self) -> int:
        """Number of batches."""
        return self._number

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """The batches in order, all of one shape: this host's rows of each."""
        with contextlib.closing(loader.read(self._batches, 0, self._number, workers=0, prefetch=self._prefetch)) as it:
            yield from it

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
        """Targets and bytes of the first batches, over all hosts' rows."""
        # A limited pass has no stored totals: its batches are made once more, alike on every host.
        context = self._batches.context
        all_rows = dataclasses.replace(context, rows=np.arange(context.batch_size))
        batches = dataclasses.replace(self._batches, context=all_rows)
        tokens, size, lengths = 0, 0, self._tokenizer.byte_lengths
        for n in range(self._number):
            batch = batches[n]
            targets = batch["targets"][batch["weights"] > 0]
            tokens += len(targets)
            size += 0 if lengths is None else int(lengths[targets].sum())
        return tokens, None if lengths is None else size


@dataclass(frozen=True)
class Task:
    """A source of (source, target) pairs, one pair a row, so that decoded text can be compared with its target.

    documents: numbers of the pairs, in order. originals: reads the target texts from the source again; DataError if it
    is gone.
    """

    pairs: Texts
    documents: Sequence[int]
    context: BatchContext
    originals: Callable[[], list[str]]
    prefetch: int

    @property
    def examples(self) -> int:
        return len(self.documents)

    def batches(self) -> Iterator[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
        """(this host's rows of a batch, targets of all its examples: int32 [n] each, without an end token).

        Texts in rows are cut to their length, targets are not. The last batch is filled up with padding.
        """
        pairs, plan = self.pairs, Plan(np.arange(self.examples + 1), np.asarray(self.documents))
        rows = EvalRows(self.context, [Texts(pairs.stream, plan, pairs.lengths, pairs.end)])
        with contextlib.closing(loader.read(rows, 0, len(rows), workers=0, prefetch=self.prefetch)) as reader:
            for n, batch in enumerate(reader):
                first = n * self.context.batch_size
                yield batch, list(map(self._target, self.documents[first : first + self.context.batch_size]))

    def _target(self, document: int) -> np.ndarray:
        _, (start, size) = self.pairs.stream.fields(document).values()
        ids = np.empty(size, np.int32)
        self.pairs.stream.copy(start, ids)
        return ids
