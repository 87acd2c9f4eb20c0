"""What a log has more is printed as far as somebody reads it: who waits for a reader hears nothing else."""

import itertools
import os
import select
import sys
from typing import BinaryIO

PIECE = 4096  # bytes that a pipe takes whole or not at all
MANY = 256  # pieces


class Passing:
    """Prints what comes into a log on standard output."""

    def __init__(self, log: BinaryIO):
        self._log, self._rest = log, b""
        self._to = 1 if sys.stdout else os.open(os.devnull, os.O_WRONLY)  # else 1 may be another file by now
        if sys.stdout:
            sys.stdout.flush()  # what was printed here before comes first

    def some(self, wait: float | None = 0.0) -> None:
        """Prints until there is no more, or nobody has read any for `wait` seconds; None waits for ever.

        Without a wait it prints MANY pieces at most, since whoever asks looks after other things too.
        """
        pieces = range(MANY) if wait == 0.0 else itertools.count()
        try:
            for _ in pieces:
                if not (self._rest or self._more()):
                    return
                if not select.select([], [self._to], [], wait)[1]:
                    return
                self._rest = self._rest[os.write(self._to, self._rest) :]
        except OSError:  # nobody reads any more: it is in the log
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._to)

    def _more(self) -> bytes:
        self._rest = self.read()
        return self._rest

    def read(self) -> bytes:
        """A piece of what is new in the log."""
        return self._log.read(PIECE)
