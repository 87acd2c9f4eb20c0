"""Bounds on how long a run waits: for a dead peer by JAX's heartbeats, for a hung one by a watchdog thread."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable

from input_pipeline import io
from pretrain.distributed.shutdown import FAULT, shutdown
from pretrain.metrics.progress import Ledger

TIMEOUT = 30  # seconds without a heartbeat after which JAX counts a process as dead
LOOK = 0.5  # seconds between looks of the watchdog
SLOW = 6  # compiling, saving, restoring, evaluating and the first update may take so many times `train.patience`
QUICK = ("step", "data", "other")  # categories of the ledger that may take `train.patience` seconds

_exit_on_abort = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: os._exit(FAULT))


def exit_when_peers_die() -> None:
    """Makes the loss of a peer exit with FAULT.

    JAX's client aborts the process then, in a C++ thread: after TIMEOUT, or at once if process 0 is gone. A handler of
    `signal.signal` would never run, because Python calls those in the main thread only.
    """
    ctypes.CDLL(None).signal(signal.SIGABRT, _exit_on_abort)


class Watchdog:
    """Ends this process with FAULT and all its stacks once its work stops advancing.

    Work advances with every block of the `ledger` and every turn of `shutdown`. `patience` is the limit in seconds, 0
    for none. There is no limit before the first block: tokenizing may take hours, and the other hosts wait for it.
    Looks are counted instead of seconds, so that a suspended process continues when it wakes.
    """

    def __init__(self, patience: float, ledger: Ledger, end: Callable[[int, str], None] = shutdown.exit):
        self._patience, self._ledger, self._end = patience, ledger, end
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        turns, looks = -1, 0
        while not self._closed.wait(LOOK):
            now = self._ledger.turns + shutdown.turns
            waits = threading.main_thread().ident in io.waiting  # for a lock, which has no limit
            looks = looks + 1 if now == turns and not waits else 0
            turns = now
            if self._ledger.turns and 0 < self._limit() <= looks * LOOK:
                faulthandler.dump_traceback(sys.__stderr__ or 2)
                place = f"{self._ledger.category}, after update {self._ledger.update}"
                message = f"no progress for {looks * LOOK:.0f} s ({place}; config.train.patience={self._patience:g})"
                self._end(FAULT, f"{message}. Start the same command again.")
                return

    def _limit(self) -> float:
        quick = self._ledger.category in QUICK and self._ledger.steady
        return self._patience * (1 if quick else SLOW)
