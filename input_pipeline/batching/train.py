"""Training batches: batch n is a function of (seed, n) alone.

Nothing depends on the number of hosts, workers or restarts: a host asks for some rows of batch n and gets those rows.
The position in the data is n.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from input_pipeline.batch_spec import Feature, declared, empty
from input_pipeline.batching.mixture import Mixture, hash_key, shuffle_rows
from input_pipeline.batching.ramp import BatchSizes
from input_pipeline.corruption.base import Objective
from input_pipeline.corruption.rng import uniform
from input_pipeline.errors import DataError
from input_pipeline.packing.concat import RawRows, read_windows
from input_pipeline.packing.xlnet_segments import DRAWS, Segments
from input_pipeline.token_store.stream import Stream

ROWS = 100  # purpose of what is drawn for raw rows; objectives use smaller numbers


@dataclass(frozen=True)
class BatchContext:
    """Settings that all batches of a run share."""

    objective: Objective
    layout: str
    seed: int
    batch_size: int
    length: int
    rows: np.ndarray  # rows of each batch that this host needs, int64 [n]

    def features(self) -> Mapping[str, Feature]:
        """Features of this host's rows."""
        return declared(self.objective, len(self.rows), self.length, self.layout)

    def empty(self) -> dict[str, np.ndarray]:
        """This host's rows as padding."""
        return empty(self.features()) | {"row": self.rows.astype(np.int32)}

    def keys(self, numbers: np.ndarray, *words: int) -> np.ndarray:
        """Keys for `numbers` (int64 [n] below 2^31): int64 [n], a function of the seed, `words` and each number."""
        # 32 hashed bits in front, the number in the low 31: rows of one batch never share a key.
        return hash_key(self.seed, *words) * (1 << 31) + numbers


def rows_of_host(rows: np.ndarray | None, batch_size: int) -> np.ndarray:
    """The rows of a batch that this host needs, int64 [n]; None means all."""
    return np.arange(batch_size) if rows is None else np.asarray(rows, np.int64)


class Ramp(NamedTuple):
    """Sizes of all batches, and for each size the rows that this host needs."""

    sizes: BatchSizes
    rows: Mapping[int, np.ndarray]


class MixedBatches:
    """Batches of rows from several sources: row r of batch n is example n * B + r of the mixture.

    With `ramp` batches before the last stage are smaller: row r is example `sizes.rows_before(n)` + r.
    """

    def __init__(
        self,
        context: BatchContext,
        sources: Sequence[RawRows],
        weights: np.ndarray,
        shuffle: bool,
        ramp: Ramp | None = None,
    ):
        self.context, self.sources, self.mixture, self.shuffle = context, sources, Mixture(weights), shuffle
        self.ramp = ramp

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        context, first = self.context, n * self.context.batch_size
        if self.ramp:
            first = self.ramp.sizes.rows_before(n)
            context = replace(context, rows=self.ramp.rows[self.ramp.sizes.size(n)])
        batch, examples = context.empty(), first + context.rows
        # Keys of an example are those that it has without a ramp: of row `place` of batch `block`.
        blocks, places = np.divmod(examples, context.batch_size)
        keys = np.empty_like(examples)
        for block in np.unique(blocks).tolist():
            keys[blocks == block] = context.keys(places[blocks == block], block)
        # A host locates only its own rows; any other host would find the same for them.
        source, counts = self.mixture.locate(examples)
        for index, rows in enumerate(self.sources):
            slots = np.flatnonzero(source == index)
            if len(slots):
                # A source's examples count up one by one: epoch = count // rows, place in it = count % rows.
                mine = counts[slots]
                mine = shuffle_rows(mine, len(rows), context.seed, index) if self.shuffle else mine % len(rows)
                context.objective.fill(batch, slots, rows.read(mine), keys[slots])
        return batch


@dataclass(frozen=True)
class StreamBatches:
    """Contiguous streams (Dai et al. 2019): row r of batch n + 1 continues row r of batch n.

    For training the stream of N ids is cut into B lanes of L = N // B; an epoch reads as many whole rows as a lane has.
    With `shuffle` each epoch begins at another place of the circular stream, so that all ids are read in the long run.
    For evaluation lane r predicts from ids r L .. (r + 1) L - 1, L = ceil(targets / B), each once.
    """

    context: BatchContext
    stream: Stream
    shuffle: bool
    targets: int | None = None  # evaluation: ids of the stream that are predicted, from the second on

    def __post_init__(self):
        if self.targets is None and not len(self):
            raise DataError(
                f"data.layout=stream: train.batch_size={self.context.batch_size} rows of "
                f"data.length={self.context.length} need more than {self.stream.tokens} tokens. Lower one."
            )

    @property
    def raw_length(self) -> int:
        return self.context.objective.raw_length(self.context.length)

    @property
    def lane(self) -> int:
        size = self.context.batch_size
        return self.stream.tokens // size if self.targets is None else -(-self.targets // size)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.lane // self.raw_length if self.targets is None else -(-self.lane // self.raw_length)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        context = self.context
        # The offset is 32 random bits scaled to [0, N): where the epoch begins in the circular stream.
        epoch, step = divmod(n, len(self))
        offset = hash_key(context.seed, epoch) * self.stream.tokens >> 32 if self.shuffle else 0
        batch = context.empty()
        first, within = context.rows * self.lane, step * self.raw_length + np.arange(self.raw_length)  # [n], [R]
        raw = read_windows(self.stream, offset + first + step * self.raw_length, self.raw_length)
        if self.targets is not None:
            # Lanes are rounded up, so the last one may end early; its rows are padding from there on.
            raw = raw.where((within < self.lane) & (first[:, None] + within < self.targets))  # [n, R]
        context.objective.fill(batch, np.arange(len(first)), raw, context.keys(context.rows, n))
        batch["reset"][:] = step == 0
        return batch


@dataclass(frozen=True)
class SegmentBatches:
    """Contiguous streams whose rows end with two segments (Yang et al. 2019): the text of row r continues.

    With `both_ways` as many lanes more read backwards what the first `lanes` read forwards. With `shuffle` each epoch
    begins at another place of the circular stream. Rows of a batch beyond the lanes are padding.
    """

    context: BatchContext
    segments: Segments
    lanes: int
    shuffle: bool
    both_ways: bool

    def __len__(self) -> int:
        """Batches of an epoch: as many as fit a lane, at least one; 0 without lanes."""
        return self.lanes and max(1, self.segments.stream.tokens // self.lanes // self.segments.reuse)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        context, total = self.context, self.segments.stream.tokens
        epoch, step = divmod(n, len(self))
        offset = hash_key(context.seed, epoch) * total >> 32 if self.shuffle else 0
        batch = context.empty()
        # Rows 0 .. lanes - 1 read forwards, rows lanes .. 2 lanes - 1 the same lanes of the reverse.
        slots = np.flatnonzero(context.rows < self.lanes * (2 if self.both_ways else 1))
        rows = context.rows[slots]
        # Only the text advances a lane, by `reuse` ids a row; the two segments are read again by later rows.
        starts = offset + rows % self.lanes * (total // self.lanes) + step * self.segments.reuse
        keys = context.keys(rows, n)
        raw = self.segments.read(starts % total, rows >= self.lanes, uniform(keys, ROWS, DRAWS))
        context.objective.fill(batch, slots, raw, keys)
        batch["reset"][:] = step == 0
        return batch
