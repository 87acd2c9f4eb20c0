"""Sources of pairs of texts, a pair a row: what is written for each text can be compared with what it should be."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from input_pipeline.batches import loader
from input_pipeline.batches.evaluation import Rowwise
from input_pipeline.batches.training import Batching
from input_pipeline.layouts.texts import Plan, Texts
from input_pipeline.store.stream import Stream


@dataclass(frozen=True)
class Task:
    """The first `examples` pairs of a source, in order, in rows of `lengths` tokens that are read and written.

    `originals` gives the texts to be written as they lie in the source. Errors: DataError where it is not there.
    """

    stream: Stream
    batching: Batching
    lengths: tuple[int, int]
    end: int
    examples: int
    originals: Callable[[], list[str]]
    prefetch: int

    def batches(self) -> Iterator[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
        """(this host's rows of a batch, the texts to be written of all its examples: int32 [n] each, without an end).

        Texts are cut in rows, where they are longer; what is to be written is not. The last batch is filled up with
        rows of padding.
        """
        alone = Plan(np.arange(self.examples + 1), np.arange(self.examples))
        rows = Rowwise(self.batching, [Texts(self.stream, alone, self.lengths, self.end)])
        with contextlib.closing(loader.read(rows, 0, len(rows), workers=0, prefetch=self.prefetch)) as reader:
            for n, batch in enumerate(reader):
                first = n * self.batching.batch_size
                yield batch, list(map(self._target, range(self.examples)[first : first + self.batching.batch_size]))

    def _target(self, number: int) -> np.ndarray:
        _, (start, size) = self.stream.fields(number).values()
        ids = np.empty(size, np.int32)
        self.stream.copy(start, ids)
        return ids
