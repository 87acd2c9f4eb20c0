"""Evaluation batches: a finite pass over a split that scores each token once, and sources of pairs to decode."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from input_pipeline import batching
from input_pipeline.batching.train import BatchContext, SegmentBatches, StreamBatches
from input_pipeline.packing.concat import RawRows
from input_pipeline.packing.seq2seq import Plan, Texts
from input_pipeline.token_store.store import NOTHING, Counts
from input_pipeline.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class EvalRows:
    """Batches of the sources' rows, interleaved in proportion: the first batches have their share of each source.

    Each source's rows come in order. The last batch is filled up with padding, as are rows beyond the batch size.
    """

    context: BatchContext
    sources: Sequence[RawRows]

    def __len__(self) -> int:
        return -(-len(self._order) // self.context.batch_size)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        context = self.context
        batch = context.empty()
        # Rows beyond the batch size only let devices share a batch evenly.
        places = n * context.batch_size + context.rows
        used = np.flatnonzero((context.rows < context.batch_size) & (places < len(self._order)))
        wanted = self._order[places[used]]
        begin = 0
        for source in self.sources:
            mine = (begin <= wanted) & (wanted < begin + len(source))
            if mine.any():
                raw = source.read(wanted[mine] - begin)
                # Keys depend on the row alone, so that every evaluation of a run sees the same corruption.
                context.objective.fill(batch, used[mine], raw, context.keys(wanted[mine]))
            begin += len(source)
        return batch

    @functools.cached_property
    def _order(self) -> np.ndarray:
        """The row, counted through the sources, at each place: int64 [rows]."""
        # Row i of a source with m rows is due at (i + 1/2) / m of the pass; ties go to the earlier source.
        shares = [(np.arange(len(source)) + 0.5) / len(source) for source in self.sources]
        return np.argsort(np.concatenate(shares), kind="stable")


EvalBatches = EvalRows | StreamBatches | SegmentBatches


class Evaluation:
    """A pass over a split, or over its first `limit` batches (0: all), and the totals to divide by.

    whole: counts of a pass over all rows.
    """

    def __init__(self, batches: EvalBatches, whole: Counts, tokenizer: Tokenizer, *, limit: int, prefetch: int):
        self._batches, self._lengths, self._prefetch = batches, tokenizer.byte_lengths, prefetch
        self._number = min(limit or len(batches), len(batches))
        self._whole = whole if self._number == len(batches) else None

    def __len__(self) -> int:
        """Number of batches."""
        return self._number

    @property
    def scope(self) -> str:
        """The part of the split that is read, in words for the log."""
        whole = len(self._batches)
        return f"all {whole:,} batches" if len(self) == whole else f"first {len(self):,} of {whole:,} batches"

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """The batches in order, all of one shape: this host's rows of each."""
        with contextlib.closing(batching.read(self._batches, 0, self._number, 0, self._prefetch)) as batches:
            yield from batches

    @property
    def tokens(self) -> int:
        """Targets scored."""
        return self._counts.tokens

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of their text, or of images; None if the tokenizer normalises text, whose size is lost."""
        return None if self._lengths is None else self._counts.bytes

    @property
    def words(self) -> int | None:
        """Words and line ends of the text; None for a part of a split."""
        return self._whole and self._whole.words

    @functools.cached_property
    def _counts(self) -> Counts:
        """Counts of the pass, over all hosts' rows."""
        if self._whole:
            return self._whole
        # A limited pass has no stored totals: its batches are made once more, alike on every host.
        context = self._batches.context
        all_rows = dataclasses.replace(context, rows=np.arange(context.batch_size))
        batches = dataclasses.replace(self._batches, context=all_rows)
        read = (batches[n] for n in range(self._number))
        targets = np.concatenate([batch["targets"][batch["weights"] > 0] for batch in read])
        size = 0 if self._lengths is None else int(self._lengths[targets].sum())
        return NOTHING._replace(tokens=len(targets), bytes=size)


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
        with contextlib.closing(batching.read(rows, 0, len(rows), 0, self.prefetch)) as batches:
            for n, batch in enumerate(batches):
                first = n * self.context.batch_size
                yield batch, list(map(self._target, self.documents[first : first + self.context.batch_size]))

    def _target(self, document: int) -> np.ndarray:
        _, (start, size) = self.pairs.stream.fields(document).values()
        ids = np.empty(size, np.int32)
        self.pairs.stream.copy(start, ids)
        return ids
