"""Worker processes: their number, their processor time, and their end together with their parent."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_seconds() -> float:
    """Processor time of this process and, on Linux, of its running worker processes, in seconds."""
    used = time.process_time()
    for worker in multiprocessing.active_children():
        with suppress(OSError, TypeError, ValueError):  # it has just ended, or this is not Linux
            with open(f"/proc/{worker.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # the name before may contain anything
            used += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return used


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
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
