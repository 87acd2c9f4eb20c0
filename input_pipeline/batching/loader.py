"""Reading batches ahead, through Grain: in threads of this process or in worker processes."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from absl import flags

from input_pipeline.errors import DataError
from input_pipeline.processes import die_with_parent, workers_start


class KilledReaderError(DataError):
    """A worker process was killed; nothing is wrong with the data that it read."""


class Batches(Protocol):
    """Batches by number, each made without those before it."""

    def __getitem__(self, n: int) -> dict[str, np.ndarray]: ...


ENDLESS = 1 << 62
KILLED = "Worker process was terminated unexpectedly"  # how Grain's error begins
THREADS = 4  # copying a batch takes microseconds a row: threads hide the disk's latency, not work


def read(batches: Batches, start: int, stop: int, workers: int, prefetch: int) -> Iterator[dict]:
    """An iterator over batches start .. stop - 1, `prefetch` of them read ahead; `close()` it when done.

    With `workers` above 0, as many processes read; else threads do. Errors: KilledReaderError where one of them was.
    """
    import grain  # seconds, which prepare need not spend

    ahead = -(-prefetch // workers) if workers else prefetch
    options = grain.ReadOptions(num_threads=min(ahead, THREADS), prefetch_buffer_size=ahead)
    dataset = grain.MapDataset.range(start, stop).map(batches.__getitem__).to_iter_dataset(options)
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain reads its flags when it starts processes: here, their defaults
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=max(1, ahead)),
            worker_init_fn=_begin,
        )
        return Workers(iter(dataset))
    return iter(dataset)


def _begin(index: int, count: int) -> None:
    """What a worker process does first."""
    die_with_parent()


class Workers:
    """Grain's iterator over what worker processes read, whose end is said in words."""

    def __init__(self, reading):
        self._reading = reading
        self._started = False

    def __iter__(self) -> "Workers":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        try:
            if self._started:
                return next(self._reading)
            with workers_start(outlive_sigterm=True):  # Grain starts them for the first batch, ends them with SIGKILL
                self._started = True
                return next(self._reading)
        except RuntimeError as error:
            if not str(error).startswith(KILLED):
                raise
            raise KilledReaderError(
                "a process that reads the data was killed, perhaps for want of memory; start the same command again, "
                "with fewer config.data.workers if it is killed again"
            ) from None

    def close(self) -> None:
        self._reading.close()
