"""Who makes the parts of a token store: processes of this machine, or the workers of an Apache Beam pipeline.

Both call `parts.encode` for each part, and nothing else decides what is in its files.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack

from input_pipeline.errors import DataError
from input_pipeline.processes import cores, die_with_parent, workers_start
from input_pipeline.token_store import parts
from input_pipeline.token_store.parts import Job

Workers = Callable[[Sequence[Job]], Iterator[tuple[int, dict]]]  # the number and the record of each part, as it is done


def processes(count: int = 0) -> Workers:
    """Parts are made by so many processes of this machine, or by one for each core that it may use, where `count` is 0.

    Of little text, or of a single part, by this process: starting others takes half a second.
    """

    def work(jobs: Sequence[Job]) -> Iterator[tuple[int, dict]]:
        many = min(len(jobs), count or cores())
        if many == 1 or sum(span.size for job in jobs for span in job.spans) < 4 * parts.BYTES:
            for job in jobs:
                yield job.number, parts.encode(job)
            return
        try:
            yield from _shared(jobs, many)
        except BrokenProcessPool:
            raise DataError(
                f"a process that tokenised '{jobs[0].source.spec}' was killed, perhaps for want of memory, unless it "
                "has said another reason; run again: what it had finished is kept"
            ) from None

    return work


def _shared(jobs: Sequence[Job], many: int) -> Iterator[tuple[int, dict]]:
    """The same by so many processes."""
    with ExitStack() as stack:
        with workers_start():
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(many, context, initializer=die_with_parent))
            stack.callback(pool.shutdown, cancel_futures=True)
            futures = {pool.submit(parts.encode, job): job.number for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
