"""Worker processes: their number, and their end together with their parent."""

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


UNTIDY = "ignore:resource_tracker"  # it warns when it cleans up after a killed process


@contextmanager
def workers_start(*, outlive_sigterm: bool = False) -> Iterator[None]:
    """Processes started in this block ignore Ctrl-C, which a terminal sends to them too: their parent ends them.

    With `outlive_sigterm` also SIGTERM, which a cluster sends to every process of a job: they work until their parent
    has saved, and must then be killed. They inherit the blocked signals; their own first statement would be too late.
    """
    sys.warnoptions.append(UNTIDY)  # inherited too
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # the resource tracker does not handle it
    try:
        resource_tracker.ensure_running()  # it unblocks the others as it starts
        left = {signal.SIGINT, signal.SIGTERM} if outlive_sigterm else {signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, left)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.warnoptions.remove(UNTIDY)


def die_with_parent() -> None:
    """Makes a worker exit when its parent ends, even by kill -9. Call it first in a worker."""

    def watch():
        # Returns when the parent ends, in whatever way.
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
