"""Sources of pairs of texts, a pair a row: what is written for each text can be compared with what it should be."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from input_pipeline.batching import loader
from input_pipeline.batching.eval_batches import Rowwise
from input_pipeline.batching.train_batches import Batching
from input_pipeline.packing.seq2seq import Plan, Texts


@dataclass(frozen=True)
class Task:
    """Some `documents` of `pairs`, in order, each in a row of its own.

    `originals` gives the texts to be written as they lie in the source. Errors: DataError where it is not there.
    """

    pairs: Texts
    documents: Sequence[int]
    batching: Batching
    originals: Callable[[], list[str]]
    prefetch: int

    @property
    def examples(self) -> int:
        return len(self.documents)

    def batches(self) -> Iterator[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
        """(this host's rows of a batch, the texts to be written of all its examples: int32 [n] each, without an end).

        Texts are cut in rows, where they are longer; what is to be written is not. The last batch is filled up with
        rows of padding.
        """
        pairs, alone = self.pairs, Plan(np.arange(self.examples + 1), np.asarray(self.documents))
        rows = Rowwise(self.batching, [Texts(pairs.stream, alone, pairs.lengths, pairs.end)])
        with contextlib.closing(loader.read(rows, 0, len(rows), workers=0, prefetch=self.prefetch)) as reader:
            for n, batch in enumerate(reader):
                first = n * self.batching.batch_size
                yield batch, list(map(self._target, self.documents[first : first + self.batching.batch_size]))

    def _target(self, document: int) -> np.ndarray:
        _, (start, size) = self.pairs.stream.fields(document).values()
        ids = np.empty(size, np.int32)
        self.pairs.stream.copy(start, ids)
        return ids
