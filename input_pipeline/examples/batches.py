"""Batches of examples by length: training batches without end, and passes for evaluation."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from input_pipeline.batching.mixture import hash_key, shuffle_rows
from input_pipeline.batching.train import BatchContext
from input_pipeline.examples.table import Examples
from input_pipeline.packing.seq2seq import Plan, pack

WINDOW = 64  # batches whose examples are sorted by length together
BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
ORDER = 101  # purpose of the keys by which batches of a window are put in order


def bucket_lengths(buckets: Sequence[int], length: int) -> tuple[int, ...]:
    """Lengths that batches may have, the last of them `length`."""
    return (*sorted(size for size in (buckets or BUCKETS) if size < length), length)


class ExampleBatches:
    """Training batches: example i of the endless stream is in batch i // B before sorting.

    Examples of `WINDOW` batches are sorted by length, cut into batches, and these put in a random order: rows of a
    batch have about one length, and an epoch reads every example once. Without `shuffle` examples come as they are.
    """

    def __init__(self, context: BatchContext, table: Examples, lengths: Sequence[int], shuffle: bool):
        self.context, self.table, self.lengths, self.shuffle = context, table, lengths, shuffle
        self._window = functools.lru_cache(4)(self._make_window)

    def __reduce__(self):
        return type(self), (self.context, self.table, self.lengths, self.shuffle)

    def numbers(self, n: int) -> np.ndarray:
        """The examples of batch n, int64 [B]."""
        size = self.context.batch_size
        if not self.shuffle:
            return (n * size + np.arange(size)) % len(self.table)
        window, place = divmod(n, WINDOW)
        return self._window(window)[place]

    def _make_window(self, window: int) -> np.ndarray:
        """The examples of a window's batches, int64 [WINDOW, B]."""
        size, seed = self.context.batch_size, self.context.seed
        stream = window * WINDOW * size + np.arange(WINDOW * size)
        examples = shuffle_rows(stream, len(self.table), seed, 0)
        # Rows of one length keep their random order.
        batches = examples[np.argsort(self.table.lengths[examples], kind="stable")].reshape(WINDOW, size)
        return batches[np.random.default_rng(hash_key(seed, ORDER, window)).permutation(WINDOW)]

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        return fill(self.context, self.table, self.numbers(n), self.lengths)


def pack_rows(table: Examples, objective, length: int) -> Plan:
    """The examples of each row of `length` tokens, if several share one."""
    return pack(*objective.needs(table.sizes, length))


@dataclass(frozen=True)
class PackedBatches:
    """Training batches of rows that several examples share: row r of batch n is row n * B + r of the endless stream."""

    context: BatchContext
    table: Examples
    plan: Plan
    shuffle: bool

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        context, batch, number = self.context, self.context.empty(), len(self.plan.first) - 1
        # Rows are as full as each other, so that none need be sorted by length.
        rows = n * context.batch_size + context.rows
        rows = shuffle_rows(rows, number, context.seed, 0) if self.shuffle else rows % number
        groups = [[self.table[one] for one in self.plan.row(row)] for row in rows.tolist()]
        context.objective.write_rows(batch, np.arange(len(rows)), groups)
        return batch


@dataclass(frozen=True)
class ExamplePass:
    """Every example of a split once, sorted by length; the last batch is filled up with padding."""

    context: BatchContext
    table: Examples
    lengths: tuple[int, ...]
    limit: int = 0  # read the first so many batches of examples alone; 0: all

    @functools.cached_property
    def order(self) -> np.ndarray:
        """The examples as they are read, int64 [n]."""
        # The first ones of the data, not the shortest: those would be a part of another kind.
        number = min(len(self.table), self.limit * self.context.batch_size or len(self.table))
        return np.argsort(self.table.lengths[:number], kind="stable")

    def __len__(self) -> int:
        return -(-len(self.order) // self.context.batch_size)

    def numbers(self, n: int) -> np.ndarray:
        """The examples of batch n: int64 [B], or fewer in the last one."""
        return self.order[n * self.context.batch_size :][: self.context.batch_size]

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        return fill(self.context, self.table, self.numbers(n), self.lengths)


def fill(context: BatchContext, table: Examples, numbers: np.ndarray, lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """This host's rows of the batch of some examples, in the least of `lengths` that holds them."""
    longest = table.lengths[numbers].max()
    # The longest row of the whole batch decides, so that all hosts agree; longer ones than all are cut.
    length = next((size for size in lengths if size >= longest), lengths[-1])
    batch = replace(context, length=length).empty()
    slots = np.flatnonzero(context.rows < len(numbers))
    context.objective.write(batch, slots, [table[one] for one in numbers[context.rows[slots]].tolist()])
    return batch
