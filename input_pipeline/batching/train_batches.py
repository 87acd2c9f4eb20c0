"""Training batches by number: batch n is a function of (seed, n), and of nothing else.

Nothing depends on how many hosts, workers or restarts there are: a host asks for some rows of batch n and
gets those rows. The position in the data is n.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from input_pipeline.batch_spec import Feature, declared, empty
from input_pipeline.batching.mixture import Mixture
from input_pipeline.batching.shuffle import key, shuffled
from input_pipeline.corruption.rng import uniform
from input_pipeline.errors import DataError
from input_pipeline.packing.concat import read_at
from input_pipeline.packing.raw import RawRows
from input_pipeline.packing.xlnet_segments import DRAWS, Segments
from input_pipeline.token_store.stream import Stream

ROWS = 100  # what is drawn of rows, beside what objectives draw


@dataclass(frozen=True)
class Batching:
    """What all of a run's batches have in common, whatever rows they are made of."""

    objective: object  # of input_pipeline.corruption
    layout: str
    seed: int
    batch_size: int
    length: int
    rows: np.ndarray  # those of a batch that this host needs, int64 [n]

    def features(self) -> Mapping[str, Feature]:
        """The features of this host's rows."""
        return declared(self.objective, len(self.rows), self.length, self.layout)

    def empty(self) -> dict[str, np.ndarray]:
        """This host's rows, of nothing but padding."""
        return empty(self.features()) | {"row": self.rows.astype(np.int32)}

    def keys(self, numbers: np.ndarray, *words: int) -> np.ndarray:
        """One integer for each of `numbers` (int64 [n] below 2^31), a function of the seed, `words` and the number."""
        return key(self.seed, *words) * (1 << 31) + numbers


class Examples:
    """Batches of rows drawn from several sources: `source[n]` is batch n, row r its example n * B + r."""

    def __init__(self, batching: Batching, sources: Sequence[RawRows], weights: np.ndarray, shuffle: bool):
        self.batching, self.sources, self.mixture, self.shuffle = batching, sources, Mixture(weights), shuffle

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        batching = self.batching
        batch, keys = batching.empty(), batching.keys(batching.rows, n)
        source, counts = self.mixture.locate(n * batching.batch_size + batching.rows)
        for index, rows in enumerate(self.sources):
            slots = np.flatnonzero(source == index)
            mine = counts[slots]
            mine = shuffled(mine, len(rows), batching.seed, index) if self.shuffle else mine % len(rows)
            if len(slots):
                batching.objective.fill(batch, slots, rows.read(mine), keys[slots])
        return batch


class Lanes:
    """Contiguous streams (Dai et al. 2019): row r of batch n + 1 goes on where row r of batch n ended.

    The stream of N ids is cut into B lanes, of which an epoch reads as many whole rows as there are. With
    `shuffle`, each epoch begins at another place of the circular stream, so that all ids get their turn.
    """

    def __init__(self, batching: Batching, stream: Stream, shuffle: bool):
        self.batching, self.stream, self.shuffle = batching, stream, shuffle
        self.raw_length = batching.objective.raw_length(batching.length)
        self.lane = stream.tokens // batching.batch_size
        self.batches = self.lane // self.raw_length
        if not self.batches:
            raise DataError(
                f"data.layout = stream needs train.batch_size x data.length = {batching.batch_size} x "
                f"{batching.length} tokens, but the split has {stream.tokens}; lower one of them, or give more text "
                "and a new work folder"
            )

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        batching = self.batching
        epoch, step = divmod(n, self.batches)
        offset = key(batching.seed, epoch) * self.stream.tokens >> 32 if self.shuffle else 0
        batch = batching.empty()
        starts = offset + batching.rows * self.lane + step * self.raw_length
        raw = read_at(self.stream, starts, self.raw_length)
        batching.objective.fill(batch, np.arange(len(starts)), raw, batching.keys(batching.rows, n))
        batch["reset"][:] = step == 0
        return batch


@dataclass(frozen=True)
class SegmentLanes:
    """Contiguous streams whose rows end with two segments (Yang et al. 2019): the text of row n + 1 follows that of n.

    With `both_ways` as many lanes more read backwards what the first ones read forwards. With `shuffle` each epoch
    begins at another place of the circular stream. `n` has no end in training; a pass has as many batches as fit a
    lane, at least one. Rows of a batch beyond the lanes are padding.
    """

    batching: Batching
    segments: Segments
    lanes: int
    shuffle: bool
    both_ways: bool

    def __len__(self) -> int:
        """Batches of an epoch; none where there are no lanes."""
        return self.lanes and max(1, self.segments.stream.tokens // self.lanes // self.segments.reuse)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        batching, total = self.batching, self.segments.stream.tokens
        epoch, step = divmod(n, len(self))
        offset = key(batching.seed, epoch) * total >> 32 if self.shuffle else 0
        batch = batching.empty()
        slots = np.flatnonzero(batching.rows < self.lanes * (2 if self.both_ways else 1))
        rows = batching.rows[slots]
        starts = offset + rows % self.lanes * (total // self.lanes) + step * self.segments.reuse
        keys = batching.keys(rows, n)
        raw = self.segments.read(starts % total, rows >= self.lanes, uniform(keys, ROWS, DRAWS))
        batching.objective.fill(batch, slots, raw, keys)
        batch["reset"][:] = step == 0
        return batch
