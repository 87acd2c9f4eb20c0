"""Worker processes: how many, and that they end with the process that started them, and only then."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


UNTIDY = "ignore:resource_tracker"  # it tidies up after a process that was ended, and warns of having to


@contextmanager
def workers_start(*, outlive_sigterm: bool = False) -> Iterator[None]:
    """Processes started within leave Ctrl-C, which a terminal sends to them too, and its end to who started them.

    With `outlive_sigterm` SIGTERM too, which a cluster sends to every process of a job: they work until the one that
    started them has saved, and must then be ended by another signal. They inherit the signals that are blocked; their
    own first statement would come too late.
    """
    sys.warnoptions.append(UNTIDY)  # inherited too
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # of which the tracker knows nothing
    try:
        resource_tracker.ensure_running()  # it unblocks the others as it starts
        left = {signal.SIGINT, signal.SIGTERM} if outlive_sigterm else {signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, left)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.warnoptions.remove(UNTIDY)


def die_with_parent() -> None:
    """A parent that is killed cannot stop its workers: each watches for its end. Runs first in a worker."""

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
