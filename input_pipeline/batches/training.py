"""Training batches by number: batch n is a function of (seed, n), and of nothing else.

Nothing depends on how many hosts, workers or restarts there are: a host asks for some rows of batch n and
gets those rows. The position in the data is n.
"""

from collections.abc import Sequence

import numpy as np

from input_pipeline import features
from input_pipeline.batches.order import Mixture, key, shuffled
from input_pipeline.errors import DataError
from input_pipeline.layouts.rows import Packed, Windows
from input_pipeline.store.store import Stream


class Examples:
    """Batches of rows drawn from several sources: `source[n]` is batch n, row r its example n * B + r."""

    def __init__(
        self,
        sources: Sequence[Windows | Packed],
        weights: np.ndarray,
        *,
        seed: int,
        batch_size: int,
        length: int,
        layout: str,
        shuffle: bool,
        rows: np.ndarray,
    ):
        self.sources, self.mixture = sources, Mixture(weights)
        self.seed, self.batch_size, self.length, self.layout = seed, batch_size, length, layout
        self.shuffle, self.rows = shuffle, rows

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        batch = features.empty(len(self.rows), self.length, self.layout)
        source, counts = self.mixture.locate(n * self.batch_size + self.rows)
        for index, rows in enumerate(self.sources):
            slots = np.flatnonzero(source == index)
            mine = counts[slots]
            mine = shuffled(mine, len(rows), self.seed, index) if self.shuffle else mine % len(rows)
            rows.fill(batch, slots, mine)
        return batch


class Lanes:
    """Contiguous streams (Dai et al. 2019): row r of batch n + 1 goes on where row r of batch n ended.

    The stream of N ids is cut into B lanes, of which an epoch reads as many whole rows as there are. With
    `shuffle`, each epoch begins at another place of the circular stream, so that all ids get their turn.
    """

    def __init__(self, stream: Stream, *, seed: int, batch_size: int, length: int, shuffle: bool, rows: np.ndarray):
        self.stream, self.seed, self.length, self.shuffle, self.rows = stream, seed, length, shuffle, rows
        self.lane = stream.tokens // batch_size
        self.batches = self.lane // length
        if not self.batches:
            raise DataError(
                f"data.layout = stream needs train.batch_size x data.length = {batch_size} x {length} tokens, "
                f"but the split has {stream.tokens}; lower one of them or give more text"
            )

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        epoch, step = divmod(n, self.batches)
        offset = key(self.seed, epoch) * self.stream.tokens >> 32 if self.shuffle else 0
        batch = features.empty(len(self.rows), self.length, "stream")
        ids = np.empty((len(self.rows), self.length + 1), np.int32)
        for out, lane in zip(ids, self.rows.tolist(), strict=True):
            self.stream.copy(offset + lane * self.lane + step * self.length, out)
        batch["tokens"][:], batch["targets"][:] = ids[:, :-1], ids[:, 1:]
        batch["segments"][:], batch["weights"][:], batch["reset"][:] = 1, 1, step == 0
        batch["positions"][:] = np.arange(self.length)
        return batch
