"""What a log has more is printed as far as somebody reads it: who waits for a reader hears nothing else."""

import itertools
import os
import select
import sys
from collections.abc import Callable
from typing import BinaryIO

from launch.output import PIECE, nowhere

MANY = 256  # pieces
LOOK = 0.1  # seconds between looks at whether it is still worth waiting


class Passing:
    """Prints what comes into a log on standard output."""

    def __init__(self, log: BinaryIO):
        self._log, self._rest, self._last = log, b"", False
        self._to = 1 if sys.stdout else os.open(os.devnull, os.O_WRONLY)  # else 1 may be another file by now
        if sys.stdout:
            sys.stdout.flush()  # what was printed here before comes first

    def some(self, waits: Callable[[], bool] | None = None) -> bool:
        """Prints until there is no more, or `waits`, asked again and again, says no.

        Without it MANY pieces are printed at most, and none is waited for: whoever asks looks after other things too.
        Returns whether there is no more, or nobody to read it.
        """
        try:
            for _ in itertools.count() if waits else range(MANY):
                if not (self._rest or self._more()):
                    return True
                while not select.select([], [self._to], [], LOOK if waits else 0.0)[1]:
                    if not (waits and waits()):
                        return False
                if waits and not waits():
                    return False
                self._rest = self._rest[os.write(self._to, self._rest[:PIECE]) :]
        except OSError:  # nobody reads any more: it is in the log
            nowhere(self._to)
            return True
        return False

    def rest(self, waits: Callable[[], bool]) -> bool:
        """Prints all that is left, as `some` does: nothing more will come."""
        self._last = True
        return self.some(waits)

    def _more(self) -> bytes:
        self._rest = self.read()
        return self._rest

    def read(self) -> bytes:
        """A piece of what is new in the log."""
        return self._log.read(PIECE)


class Named(Passing):
    """Prints whole lines, each behind a name: they may stand among those of others.

    A line of more bytes than can be printed at once is several.
    """

    def __init__(self, log: BinaryIO, name: str):
        super().__init__(log)
        self._name, self._held = f"{name} | ".encode(), b""

    def read(self) -> bytes:
        """A line; one that has not ended waits for its rest."""
        room = PIECE - len(self._name) - 1
        line, self._held = self._held + self._log.readline(room - len(self._held)), b""
        if line.endswith(b"\n") or not line:
            return line and self._name + line
        if self._last or len(line) == room:
            return self._name + line + b"\n"
        self._held = line
        return b""
