"""What a log has more is printed as far as somebody reads it: who waits for a reader hears nothing else."""

import os
import select
import sys
from typing import BinaryIO

PIECE = 4096  # bytes that a pipe takes whole or not at all


class Passing:
    """Prints what comes into a log on standard output."""

    def __init__(self, log: BinaryIO):
        self._log, self._rest = log, b""
        if sys.stdout:
            sys.stdout.flush()  # what was printed here before comes first

    def some(self, wait: float | None = 0.0) -> None:
        """Prints until there is no more, or nobody has read any for `wait` seconds; None waits for ever."""
        try:
            while self._rest or self._more():
                if not select.select([], [1], [], wait)[1]:
                    return
                self._rest = self._rest[os.write(1, self._rest) :]
        except OSError:  # nobody reads any more: it is in the log
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def _more(self) -> bytes:
        self._rest = self.read()
        return self._rest

    def read(self) -> bytes:
        """A piece of what is new in the log."""
        return self._log.read(PIECE)
