"""Locks in an object store, which a kernel drops for nobody: their holder shows that it lives."""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator

from input_pipeline.away import hurry
from input_pipeline.remote import RemotePath

BEAT = 5.0  # seconds between two signs of life of who holds a lock
TURN = 1.0  # seconds between two looks of who waits for it
PATIENCE = 60.0  # seconds without a sign after which it is taken over


@contextlib.contextmanager
def leased(path: RemotePath, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock `path`, which is created where there is none; calls `on_wait` once if another holds it.

    Its holder writes it again every few seconds. One that shows no sign for a minute is taken for dead.
    """
    mine, told, seen, since = secrets.token_hex(8).encode(), False, None, time.monotonic()
    while True:
        try:
            path.create(mine)
            break
        except FileExistsError:
            sign = path.sign()
        if sign != seen:
            seen, since = sign, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            with contextlib.suppress(TimeoutError):  # gone or not: what is there now is looked at
                path.unlink(missing_ok=True)
            continue
        if not told:
            on_wait()
            told = True
        time.sleep(TURN)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            with contextlib.suppress(OSError), hurry():  # perhaps the next time
                path.write_bytes(mine)

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield
    finally:
        ended.set()
        beating.join()
        with contextlib.suppress(OSError), hurry():
            if path.read_bytes() == mine:
                path.unlink(missing_ok=True)
