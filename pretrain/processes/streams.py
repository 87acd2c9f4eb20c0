"""Standard streams that fail nobody: a run goes on without its audience, and shows what a terminal cannot."""

import io
import os
import sys


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
        sys.stdout.reconfigure(errors="backslashreplace")  # text that the terminal's encoding lacks, as stderr has it
    encoding = sys.stderr.encoding if sys.stderr else "utf-8"
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(Unheard(2, "wb", closefd=False)), encoding, "backslashreplace", line_buffering=True
    )


def keep_output_apart() -> None:
    """Leaves standard output to what Python prints: what C libraries write there goes to standard error."""
    if not sys.stdout:
        return
    sys.stdout.flush()
    own = io.BufferedWriter(io.FileIO(os.dup(1), "wb"))
    at_once = sys.stdout.line_buffering or sys.stdout.write_through
    sys.stdout = io.TextIOWrapper(own, sys.stdout.encoding, "backslashreplace", line_buffering=at_once)
    os.dup2(2, 1)


class Unheard(io.FileIO):
    """A file that takes whatever is written, whether or not it gets anywhere: a closed pipe, a full disk."""

    waiting = False  # for a reader that stands still, as a pager does, and a terminal after Ctrl-S

    def write(self, data) -> int:
        Unheard.waiting = True
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes
        finally:
            Unheard.waiting = False
