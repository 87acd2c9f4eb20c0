"""How a process leaves: asked to by a signal (SIGNALS), or because another process of its run failed.

Imports the standard library alone, so that signals are listened to before the rest of the program is loaded.

A signal is heard by a thread, in whatever code the process is, compilers and tokenizer training too. While there is
nothing to save the process leaves at once, with `PREEMPTED`: all that it writes is whole or not there. Once there is
(`hold`), a signal only asks, and whoever calls `reached` between two pieces of work saves and leaves.
"""

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

FAILED = 1  # exit code: a bug, with its traceback
MISTAKE = 2  # exit code: a user's mistake, one sentence says which
FAULT = 69  # exit code: a process was killed, hangs or computes wrongly: start the same command again
PREEMPTED = 75  # exit code: interrupted, nothing lost, start the same command again
UNWANTED = 130  # exit code: a second Ctrl-C did not wait for the save, as a shell counts SIGINT
UNREAD = 141  # exit code: the reader of standard output left before the end, as a shell counts SIGPIPE

SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)  # the second where a terminal or a connection ends

MOMENT = 1.0  # seconds that the last word waits for a reader who stands still
FAREWELL = 30.0  # seconds that leaving may take: a folder or process 0 that does not answer holds nobody back
PARTING = 5.0  # seconds that a run of one process, whose work is done, waits for threads that are abandoned
ECHO = 0.5  # seconds within which a repeated Ctrl-C is the same one: a terminal and `timeout` both pass it on


class Leaving:
    """The one way out of this process. `others` are the other processes of the run, once it has joined them."""

    def __init__(self):
        self.asked = False  # a signal came; it is answered at the next turn, for which `others` look at this
        self.others = None
        self.watchdog = None  # over the work of this process, while there is one
        self.abandoned = False  # some thread waits for what will not come, such as Orbax's of a save that failed
        self.turns = 0  # how often `reached` was called
        self.meetings = 0  # how often this process came to where all others come too (agreement.py)
        self._duties: list[Callable[[], None]] = []
        self._first = 0.0  # when it came
        self._held = False
        self._deciding = threading.Lock()
        self._door = threading.Lock()  # who goes through first decides the exit code, and nobody else gets through

    def listen(self) -> None:
        """Takes SIGNALS over. To be called in the main thread; again after a library has taken them."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.retake()
        atexit.register(self._stop_watching)  # before JAX is loaded, and so called after its farewell to the others
        threading.Thread(target=self._hear, args=(read,), name="signals", daemon=True).start()

    def retake(self) -> None:
        """Takes the signals back from a library that has put a handler of its own in place."""
        for number in SIGNALS:  # who sees SIGTERM taken over may count on all
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
                signal.signal(number, _left_to_the_thread)

    def _hear(self, read: int) -> None:
        while numbers := os.read(read, 1):
            self._signalled(numbers[0])

    def _signalled(self, number: int) -> None:
        with self._deciding:
            if self.asked:
                if number == signal.SIGINT and time.monotonic() - self._first > ECHO:
                    self.leave(UNWANTED, "left at once: updates since the last checkpoint are not saved")
                return
            self.asked, self._first = True, time.monotonic()
            if not self._held:
                self.leave(PREEMPTED, "interrupted: nothing is lost; start the same command again")

    @property
    def stopping(self) -> bool:
        """Whether this process, or another of the run, has been asked to stop."""
        return self.asked or (self.others is not None and self.others.stopping)

    def _stop_watching(self) -> None:
        if self.others:
            self.others.stop()

    def hold(self) -> None:
        """From now on there is something to save: signals wait for the next turn."""
        with self._deciding:
            self._held = True

    def ask(self) -> None:
        """Asks all processes of the run to stop at the next turn, with everything saved, as a signal does."""
        with self._deciding:
            self.asked = True

    def reached(self) -> bool:
        """Whether to stop here. All processes of a run call this at the same turns and get the same answer."""
        self.turns += 1
        return self.others.reached() if self.others else self.asked

    def leave(self, code: int, sentence: str = "") -> None:
        """Ends this process from any thread, whatever its other threads are doing, and with it the whole run."""
        with self._door:
            _leave_within(FAREWELL, code)
            if sentence:
                line = f"pretrain: {sentence}\n"
                if os.isatty(2):
                    line = f"\r\x1b[?25h{line}"  # a progress bar hides the cursor
                _write(line)
            if self.others:
                self.others.leave(code, sentence)
            for duty in self._duties:
                with contextlib.suppress(Exception):  # no reason to stay
                    duty()
            os._exit(code)

    @contextlib.contextmanager
    def after(self, duty: Callable[[], None]) -> Iterator[None]:
        """Does `duty` when the block is left, also if that is by ending the process."""
        self._duties.append(duty)
        try:
            yield
        finally:
            self._duties.remove(duty)
            duty()

    def failed(self, code: int, message: str) -> int:
        """Says why this process cannot go on, unless another one's end is the reason, and returns its exit code."""
        if self.others:
            self.others.ask_for_the_cause()
        with self._door:  # through which nobody comes behind a thread that is leaving: what it breaks is no reason
            pass
        print(message, end="", file=sys.stderr, flush=True)
        if self.others:
            self._heard()
            lines = message.strip().splitlines()
            with self._door:
                _leave_within(FAREWELL, code)
                self.others.leave(code, lines[-1].removeprefix("pretrain: ") if lines else "")
                os._exit(code)
        return code

    def end(self, code: int) -> None:
        """Ends the program, whose work is done: signals no longer matter."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        code = code if self._heard() else code or UNREAD
        if code == 0 or code == PREEMPTED:
            if self.abandoned and not self.others:  # which would have to be met
                _leave_within(PARTING, code)
            sys.exit(code)
        sys.stderr.flush()
        os._exit(code)  # the reason has been said: what libraries print of it as they are taken down is noise

    @staticmethod
    def _heard() -> bool:
        """Whether standard output has taken all that was printed; what it has not is dropped."""
        try:
            if sys.stdout:
                sys.stdout.flush()
            return True
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False


def _leave_within(seconds: float, code: int) -> None:
    """Ends this process then, however far its farewell has come."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _left_to_the_thread(number, frame) -> None:
    """Python calls this in the main thread, which may be busy; `Leaving` has heard the signal elsewhere."""


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        if select.select([], [2], [], MOMENT)[1]:
            os.write(2, line.encode())


leaving = Leaving()
