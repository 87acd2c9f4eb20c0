"""Signals and exit codes: a run finishes its update, saves and exits with 75.

Imports the standard library alone at first, so that signals are handled before JAX is loaded, which takes seconds.
"""

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

FAILED = 1  # exit code: an error with its traceback
MISTAKE = 2  # exit code: a user's mistake, in one sentence
FAULT = 69  # exit code: a peer was lost, or this process hangs or computes wrongly; start the same command again
PREEMPTED = 75  # exit code: stopped by a signal with everything saved; start the same command again
STOPPED = 130  # exit code: a second Ctrl-C did not wait for the save
UNREAD = 141  # exit code: the reader of standard output left, as a shell counts SIGPIPE

SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
ECHO = 0.5  # seconds within which a repeated Ctrl-C is the same one: a terminal and `timeout` both pass it on
LINGER = 2.0  # seconds that process 0, which hosts the coordination service, outlives its peers


class Shutdown:
    """Decides when this process ends, and with which exit code.

    A thread reads signals, so that they count during compilation and tokenizer training too. Until `hold` is called
    nothing would be lost and the process exits at once; after that a signal only makes `reached` true.
    """

    def __init__(self):
        self.requested = False
        self.turns = 0  # calls of `reached`
        self.peers = False  # whether this is one of several processes
        self.hosts_service = False  # whether the others lose JAX's coordination service when this process ends
        self._holds = False
        self._first = 0.0  # time of the first signal
        self._cleanups: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._exiting = threading.RLock()  # held by the first caller of `exit` until the process is gone

    def listen(self) -> None:
        """Handles SIGNALS from now on. Call it in the main thread."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.install_handlers()
        threading.Thread(target=self._read_signals, args=(read,), name="signals", daemon=True).start()

    def install_handlers(self) -> None:
        """Installs Python's handlers, again after a library has installed its own."""
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores SIGHUP
                signal.signal(number, lambda number, frame: None)  # the wakeup descriptor tells the thread

    def _read_signals(self, descriptor: int) -> None:
        while numbers := os.read(descriptor, 1):
            self._handle(numbers[0])

    def _handle(self, number: int) -> None:
        with self._lock:
            repeated = self.requested
            if not repeated:
                self.requested, self._first = True, time.monotonic()
            elif number == signal.SIGINT and time.monotonic() - self._first > ECHO:
                self.exit(STOPPED, "stopped without saving: updates since the last checkpoint are lost")
            if not self._holds:
                self.exit(PREEMPTED, "interrupted: nothing is lost. Start the same command again.")
        # With peers the first signal of any kind becomes SIGTERM, the one that JAX's preemption service hears.
        if self.peers and not repeated:
            self._notify_peers()

    def hold(self) -> None:
        """Makes signals wait for `reached`, because there is something to save."""
        with self._lock:
            if self._holds:
                return
            self._holds = True
        if self.peers:
            # From here on SIGTERM belongs to JAX's preemption service, which finds one step at which all stop.
            import jax
            from jax._src import distributed

            jax.config.update("jax_enable_preemption_service", True)
            distributed.global_state.initialize_preemption_sync_manager()
            if self.requested:
                self._notify_peers()

    def _notify_peers(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def request(self) -> None:
        """Asks all processes to stop at the next turn and save, as a signal does."""
        self.requested = True
        if self.peers and self._holds:
            self._notify_peers()

    def reached(self) -> bool:
        """Whether to stop here. All processes call this at the same turns and get the same answer."""
        self.turns += 1
        if not self.peers:
            return self.requested
        if not self._holds:
            return False
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point(self.turns)

    @contextlib.contextmanager
    def cleanup(self, function: Callable[[], None]) -> Iterator[None]:
        """Calls `function` when the block ends, also if a signal ends the process there."""
        self._cleanups.append(function)
        try:
            yield
        finally:
            self._cleanups.remove(function)
            function()

    def exit(self, code: int, message: str = "") -> None:
        """Ends this process at once, from any thread."""
        with self._exiting:
            if message:
                cursor = "\r\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides the cursor
                with contextlib.suppress(OSError):
                    os.write(2, f"{cursor}pretrain: {message}\n".encode())
            for function in self._cleanups:
                with contextlib.suppress(Exception):
                    function()
            if self.hosts_service:
                time.sleep(LINGER)  # else the others abort before they have printed their own reason
            os._exit(code)

    def end(self, code: int) -> None:
        """Ends the program after its command has returned `code`."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        try:
            if sys.stdout:
                sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails again
            code = code or UNREAD
        if code in (0, PREEMPTED):
            sys.exit(code)  # JAX leaves the coordination service together with the others
        sys.stderr.flush()
        self.exit(code)  # threads of a failed save, or peers that never come, would hold up a normal exit


shutdown = Shutdown()


class LossyStderr(io.FileIO):
    """Standard error that drops what cannot be written: a run outlives the reader of its log."""

    def write(self, data) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return len(data)


def protect_streams() -> None:
    """Lets the program survive a closed standard error, and characters that a stream cannot encode."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the free number, which a checkpoint's file would get otherwise
    if sys.stdout:
        sys.stdout.reconfigure(errors="backslashreplace")
    raw = io.BufferedWriter(LossyStderr(2, "wb", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)


def redirect_c_stdout() -> None:
    """Sends what C libraries print on standard output to standard error; Python keeps standard output."""
    if sys.stdout:
        sys.stdout.flush()
        sys.stdout = io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), sys.stdout.encoding, "backslashreplace")
        os.dup2(2, 1)
