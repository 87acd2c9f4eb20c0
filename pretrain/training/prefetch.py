"""Batches for the step: read by this process or its readers, and put on the devices ahead of time."""

from collections import deque
from collections.abc import Callable

from input_pipeline.batching.loader import KilledReaderError
from pretrain.distributed.shutdown import shutdown
from pretrain.training.startup import RunParts


class Feed:
    """Batches on the devices, two ahead of the step that takes them.

    Where a reader process is killed, all processes are asked to stop, as by a signal, and this one reads by itself the
    batches that it takes until then.
    """

    AHEAD = 2

    def __init__(self, run: RunParts, position: int, report: Callable[[str], None]):
        self.config, self.corpus, self.spec = run.config, run.corpus, run.spec
        self.size, self.position, self.report = run.config.train.batch_size, position, report
        self.host = self.read(run.config.data.workers)
        self.ready = deque()

    def read(self, workers: int):
        """What this process reads of the batches from `position` on."""
        return self.corpus.batches(
            seed=self.config.seed,
            batch_size=self.size,
            rows=self.spec.rows(self.size),
            start=self.position,
            workers=workers,
            prefetch=self.config.data.prefetch,
        )

    def __next__(self):
        while len(self.ready) < self.AHEAD:
            try:
                batch = next(self.host)
            except KilledReaderError as killed:
                self.report(str(killed))
                shutdown.request()
                self.close()
                self.host = self.read(workers=0)
                continue
            self.position += 1
            self.ready.append(self.spec.put(batch, self.size))
        return self.ready.popleft()

    def close(self) -> None:
        self.host.close()
