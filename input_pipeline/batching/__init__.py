"""Batches by number: which examples make batch n, for training and for evaluation, and reading them ahead."""

from collections.abc import Iterator
from typing import Any

from absl import flags

from input_pipeline.processes import die_with_parent, workers_start

ENDLESS = 1 << 62  # number of training batches
THREADS = 4  # copying a batch takes microseconds a row: threads hide the disk's latency, not work


def read(batches: Any, start: int, stop: int, workers: int, prefetch: int) -> Iterator[dict]:
    """Iterates over batches[start], ..., batches[stop - 1], reading `prefetch` ahead; `close()` it when done.

    With `workers` above 0 as many processes read, else threads do.
    """
    import grain  # takes seconds to import, which `prepare` does not need

    ahead = -(-prefetch // workers) if workers else prefetch  # of each worker
    options = grain.ReadOptions(num_threads=min(ahead, THREADS), prefetch_buffer_size=ahead)
    dataset = grain.MapDataset.range(start, stop).map(batches.__getitem__).to_iter_dataset(options)
    if not workers:
        return iter(dataset)
    # Grain reads flags when it starts processes; outside of the command line none are parsed.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    multiprocessing = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=max(1, ahead))
    return _read_in_processes(iter(dataset.mp_prefetch(multiprocessing, worker_init_fn=_start_worker)))


def _start_worker(index: int, count: int) -> None:
    die_with_parent()


def _read_in_processes(reader) -> Iterator[dict]:
    try:
        # Grain starts the processes for the first batch. They ignore SIGTERM, which clusters send to all processes of
        # a job, and read on until the trainer has saved; Grain ends them with SIGKILL.
        with workers_start(outlive_sigterm=True):
            first = next(reader, None)
        if first is not None:
            yield first
            yield from reader
    finally:
        reader.close()
