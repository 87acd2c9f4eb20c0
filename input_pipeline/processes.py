"""Worker processes: how many, what they use, and that they end with the process that started them, and only then."""

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
    """Seconds of processor time that this process has used, and those that it has started to work for it, so far.

    Of others it is known on Linux alone; what one has used is forgotten when it ends.
    """
    used = time.process_time()
    for worker in multiprocessing.active_children():
        with suppress(OSError, TypeError, ValueError):  # it has just ended, or there is no such file
            with open(f"/proc/{worker.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # its name comes before, and may have any letter
            used += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return used


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
