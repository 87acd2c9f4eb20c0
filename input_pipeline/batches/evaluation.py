"""A finite pass over a split, every token of it scored once."""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from input_pipeline import features
from input_pipeline.batches import loader
from input_pipeline.layouts.rows import Packed, Windows
from input_pipeline.store.store import Counts, Stream
from input_pipeline.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Overlapping:
    """Windows of T ids every `stride` ids: the first scores all of its targets, later ones their last `stride`.

    So every target is scored once, with at least T - stride ids before it wherever the split has them.
    """

    stream: Stream
    targets: int  # how many of the stream's ids are predicted, from the second on
    length: int
    stride: int

    def __len__(self) -> int:
        return 1 + max(0, -(-(self.targets - self.length) // self.stride))

    def fill(self, batch: dict[str, np.ndarray], slots: np.ndarray, rows: np.ndarray) -> None:
        """Writes windows `rows` (int64 [n]) into rows `slots` of the batch."""
        Windows(self.stream, self.length, self.stride).fill(batch, slots, rows)
        places = rows[:, None] * self.stride + np.arange(self.length)  # [n, T], in the stream
        fresh = (rows[:, None] == 0) | (np.arange(self.length) >= self.length - self.stride)
        _keep(batch, slots, places < self.targets)
        batch["weights"][slots] *= fresh


@dataclass(frozen=True)
class Rowwise:
    """Batches of consecutive rows; the last one is filled up with padding, as are `rows` beyond a batch's size."""

    source: Overlapping | Packed | Windows
    batch_size: int
    length: int
    layout: str
    rows: np.ndarray

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch_size)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        batch = features.empty(len(self.rows), self.length, self.layout)
        wanted = n * self.batch_size + self.rows
        slots = np.flatnonzero((self.rows < self.batch_size) & (wanted < len(self.source)))
        if len(slots):
            self.source.fill(batch, slots, wanted[slots])
        return batch


@dataclass(frozen=True)
class Lanewise:
    """Contiguous streams: lane r predicts from ids r L .. (r + 1) L - 1 of the split, L = ceil(targets / B)."""

    stream: Stream
    targets: int  # how many of the stream's ids are predicted, from the second on
    batch_size: int
    length: int
    rows: np.ndarray

    @property
    def lane(self) -> int:
        return -(-self.targets // self.batch_size)

    def __len__(self) -> int:
        return -(-self.lane // self.length)

    def __getitem__(self, n: int) -> dict[str, np.ndarray]:
        batch = features.empty(len(self.rows), self.length, "stream")
        slots = np.arange(len(self.rows))
        within = n * self.length + np.arange(self.length)  # [T], in the lane
        starts = self.rows * self.lane + n * self.length
        Windows(self.stream, self.length, 1).fill(batch, slots, starts)
        places = self.rows[:, None] * self.lane + within  # [n, T], in the stream
        _keep(batch, slots, (within < self.lane) & (places < self.targets))
        batch["reset"][:] = n == 0
        return batch


def _keep(batch: dict[str, np.ndarray], slots: np.ndarray, inside: np.ndarray) -> None:
    """Makes padding of what is not `inside`, bool [n, T]."""
    for name in ("tokens", "targets", "segments", "positions", "weights"):
        batch[name][slots] *= inside


class Evaluation:
    """The batches of a pass over a split, and the totals to divide by.

    `whole` counts a pass over all rows. tokens: targets scored. bytes: UTF-8 bytes of their text, or bytes of images;
    None where only a part of the split is scored and the tokenizer cannot tell. words: whitespace-separated words and
    line ends of the text, as `build.word_count` has them; None where only a part is scored.
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
        return self._counts.bytes if self._counts else self._part[1]

    @property
    def words(self) -> int | None:
        return self._counts.words if self._counts else None

    @functools.cached_property
    def _part(self) -> tuple[int, int | None]:
        """Targets and bytes of the first batches, all hosts' rows."""
        everything = dataclasses.replace(self._scored, rows=np.arange(self._scored.batch_size))
        tokens, size, lengths = 0, 0, self._tokenizer.byte_lengths
        for n in range(self._number):
            batch = everything[n]
            targets = batch["targets"][batch["weights"] > 0]
            tokens += len(targets)
            size += 0 if lengths is None else int(lengths[targets].sum())
        return tokens, None if lengths is None else size
