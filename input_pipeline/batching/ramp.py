"""Batches that grow at the start of a run (Brown et al. 2020, appendix B): how many rows batch n has, and which.

The rows of all batches are one sequence, whatever their sizes: a ramp cuts it into other batches.
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple


class Stage(NamedTuple):
    """Batches of one size, one after the other."""

    batch: int  # number of the first one
    row: int  # its first row in the sequence of all
    size: int  # rows of each


class BatchSizes(tuple[Stage, ...]):
    """Sizes of all batches of a run, as stages in order; the last one has no end."""

    @classmethod
    def build(cls, batch_size: int, ramp: Sequence[int] = ()) -> "BatchSizes":
        """Stages of `config.train.batch_size` and `batch_ramp`: (first size, increment, rows).

        Sizes grow from the first one to `batch_size`, linearly in the rows read, while so many rows are read. A stage
        ends with the batch that reaches its share of the rows.
        """
        first, increment, rows = ramp or (batch_size, 1, 0)
        growth = range(first, batch_size, increment)
        assert first <= batch_size and (batch_size - first) % increment == 0
        batch, row, stages = 0, 0, []
        for number, size in enumerate(growth, start=1):
            # In whole numbers: the batches until number / len(growth) of the rows are read, rounded up.
            count = -((row * len(growth) - number * rows) // (size * len(growth)))
            if count > 0:  # 0 where the batches before are longer than a share
                stages.append(Stage(batch, row, size))
                batch, row = batch + count, row + count * size
        return cls([*stages, Stage(batch, row, batch_size)])

    def stage(self, n: int) -> Stage:
        """The stage of batch `n`."""
        return self[bisect.bisect_right(self, n, key=lambda stage: stage.batch) - 1]

    def size(self, n: int) -> int:
        """Rows of batch `n`."""
        return self.stage(n).size

    def rows_before(self, n: int) -> int:
        """Rows of the batches before batch `n`, which is the number of its first row."""
        stage = self.stage(n)
        return stage.row + (n - stage.batch) * stage.size

    def __str__(self) -> str:
        last = self[-1]
        sizes = f"{self[0].size:,} rows at first, {last.size:,} from step {last.batch + 1:,} on, in {len(self)} sizes"
        return sizes if len(self) > 1 else f"{last.size:,} rows"
