"""Standard streams that fail nobody: a run goes on without its audience, and shows what a terminal cannot."""

import errno
import io
import os
import select
import stat
import sys
import time

from pretrain.distributed.shutdown import MOMENT, leaving

PIECE = select.PIPE_BUF  # bytes that a pipe with room for any takes without waiting
LOOK = 0.5  # seconds from one look at whether a reader reads on to the next


def settle() -> None:
    """Makes standard error survive its reader, and keeps the numbers of closed streams from being other files'."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # the next file opened would get this number, and with it what C libraries print
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
    if sys.stdout:
        sys.stdout.flush()
        sys.stdout = _readable(1, sys.stdout)
    encoding = sys.stderr.encoding if sys.stderr else "utf-8"
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(Unheard(2, "wb", closefd=False)), encoding, "backslashreplace", line_buffering=True
    )


def keep_output_apart() -> None:
    """Leaves standard output to what Python prints: what C libraries write there goes to standard error."""
    if not sys.stdout:
        return
    sys.stdout.flush()
    sys.stdout = _readable(os.dup(1), sys.stdout)
    os.dup2(2, 1)


def _readable(number: int, stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Another `stream` over the same file by this number, which takes text that its encoding lacks, as stderr does."""
    terminal = stat.S_ISCHR(os.fstat(number).st_mode)  # one that is gone already is no `isatty`
    own = io.BufferedWriter((_Terminal if terminal else io.FileIO)(number, "wb", closefd=False))
    at_once = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(own, stream.encoding, "backslashreplace", line_buffering=at_once)


class _Terminal(io.FileIO):
    """A terminal, whose end is that of a reader."""

    def write(self, data) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno == errno.EIO:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error
            raise


class Unheard(io.FileIO):
    """A file that takes whatever is written, whether or not it gets anywhere: a closed pipe, a full disk.

    A reader that stands still is waited for, but holds up no run that is to end.
    """

    waiting = False  # for a reader that stands still, as a pager does, and a terminal after Ctrl-S

    def write(self, data) -> int:
        rest = memoryview(data).cast("B")
        size = rest.nbytes
        try:
            while rest and self._is_read():
                rest = rest[super().write(rest[:PIECE]) :]
        except OSError:
            pass
        return size

    def _is_read(self) -> bool:
        """Returns when there is room for more, or False where the run is to end before there is."""
        look, until = select.poll(), None
        look.register(self, select.POLLOUT)
        if look.poll(0):
            return True
        Unheard.waiting = True
        try:
            while not look.poll(LOOK * 1000):
                if leaving.stopping:
                    until = until or time.monotonic() + MOMENT
                    if time.monotonic() > until:
                        return False
            return True
        finally:
            Unheard.waiting = False
