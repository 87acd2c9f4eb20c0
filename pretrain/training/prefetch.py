"""Batches on the devices, ahead of the step that takes them."""

from collections import deque
from collections.abc import Callable

from input_pipeline.batching.loader import KilledReaderError
from pretrain.distributed.shutdown import shutdown
from pretrain.training.startup import RunParts

AHEAD = 2  # batches on the devices: one is copied while another waits


class Prefetch:
    """An iterator over the batches of a run from a data position on.

    If a reader process is killed, the run is asked to stop as by a signal, and this process reads by itself until then.
    """

    def __init__(self, run: RunParts, position: int, report: Callable[[str], None]):
        self._run, self._position, self._report = run, position, report
        self._host = self._read(run.config.data.workers)
        self._ready = deque()

    def _read(self, workers: int):
        """This process's rows of the batches from the current position on, read by so many workers."""
        config = self._run.config
        return self._run.corpus.batches(
            seed=config.seed,
            batch_size=config.train.batch_size,
            rows=self._run.spec.layout.rows(config.train.batch_size),
            start=self._position,
            workers=workers,
            prefetch=config.data.prefetch,
        )

    def __next__(self):
        while len(self._ready) < AHEAD:
            try:
                batch = next(self._host)
            except KilledReaderError as killed:
                self._report(str(killed))
                shutdown.request()
                self.close()
                self._host = self._read(workers=0)
                continue
            self._position += 1
            # Copying to the devices is asynchronous: it overlaps with the step that runs.
            self._ready.append(self._run.spec.put(batch, self._run.config.train.batch_size))
        return self._ready.popleft()

    def close(self) -> None:
        self._host.close()
