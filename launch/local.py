"""Runs the program as several processes of this machine, joined over loopback.

    python -m launch.local --processes 2 --devices 2 -- train --config=configs/quickstart.py --workdir=runs/two

Each process writes a log of its own; the first one's output is shown too. When one ends in error the rest are ended,
and its exit code becomes the launcher's. SIGTERM and Ctrl-C reach every process, so that each can save and stop; a
second one kills them. If the launcher itself is killed, so are they (on Linux), and the same command can start again.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from launch import PREEMPTED, parse, parser, positive

POLL = 0.02  # seconds between looks at the processes: short, to tell which one died first
# On a busy machine devices may be late for one another; after 40 s JAX would take that for the end.
WAIT_FOR_DEVICES = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
TAIL = 20  # lines of a dead process's log that are shown


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    flags = parser("local", __doc__)
    flags.add_argument("--processes", type=positive, default=2, help="how many processes (default: 2)")
    flags.add_argument(
        "--devices", type=positive, help="virtual CPU devices of each process; left out, each sees the machine's own"
    )
    flags.add_argument("--logs", type=Path, help="folder of the logs, process-0.log and so on (default: a new one)")
    flags.add_argument(
        "--grace",
        type=float,
        default=30.0,
        help="seconds between asking the rest to stop and killing them (default: 30)",
    )
    options, program = parse(flags, argv)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="longhaul-"))
    command = [sys.executable, "-m", "pretrain", *program]
    return launch(command, options.processes, options.devices, logs, options.grace)


def launch(command: Sequence[str], processes: int, devices: int | None, logs: Path, grace: float) -> int:
    """Runs `command` as `processes` processes and returns the exit code of the first that failed, or 0.

    A process that a signal ended counts as 128 + its number, as in a shell; as interrupted, where that signal was
    passed on to it, since it had then not begun anything that could be lost. `devices` None leaves JAX its choice.
    """
    logs.mkdir(parents=True, exist_ok=True)
    _say(sys.stdout, f"launch: {processes} processes, logs in {logs}\n")
    with _Signals() as signals:
        coordinator = f"127.0.0.1:{free_port()}"
        paths = [logs / f"process-{index}.log" for index in range(processes)]
        children = [
            _start(command, _environment(index, processes, coordinator, devices), path)
            for index, path in enumerate(paths)
        ]
        return _supervise(children, paths, grace, signals)


def _supervise(children: list[subprocess.Popen], paths: list[Path], grace: float, signals: "_Signals") -> int:
    """Waits until all have ended, ending the rest once one has failed; returns the exit code."""
    failed, deadline, passed_on = None, float("inf"), set()
    with paths[0].open("rb") as shown:
        while True:
            running = [child for child in children if child.poll() is None]
            _show(shown)
            for count, number in signals.take():
                passed_on.add(number)
                for child in running:
                    child.send_signal(number) if count == 1 else _kill(child)
            if failed is None:
                failed = next((index for index, child in enumerate(children) if child.returncode), None)
                if failed is not None:
                    _report(failed, _code(children[failed], passed_on), paths[failed])
                    deadline = time.monotonic() + grace
                    for child in running if not signals.count else ():  # they have been asked to stop already
                        child.terminate()
            if not running:
                return 0 if failed is None else _code(children[failed], passed_on)
            if time.monotonic() > deadline:
                for child in running:
                    _kill(child)
            time.sleep(POLL)


def _environment(index: int, processes: int, coordinator: str, devices: int | None) -> dict[str, str]:
    environment = os.environ | {
        "LONGHAUL_COORDINATOR": coordinator,
        "LONGHAUL_PROCESSES": str(processes),
        "LONGHAUL_PROCESS": str(index),
        "PYTHONUNBUFFERED": "1",  # the log is there when one looks
    }
    if devices is not None:
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
        flags = [WAIT_FOR_DEVICES, *flags, f"--xla_force_host_platform_device_count={devices}"]
        environment["XLA_FLAGS"] = " ".join(flags)
        environment["JAX_PLATFORMS"] = "cpu"
    return environment


def _start(command: Sequence[str], environment: dict[str, str], log: Path) -> subprocess.Popen:
    """A process in a session of its own, so that a Ctrl-C reaches it from here alone, and once."""
    with log.open("wb") as out:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: a forked child should load nothing


def _die_with_parent() -> None:
    """Two runs in one work folder would spoil it, so no process outlives a launcher that was killed."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    _libc.prctl(set_parent_death_signal, signal.SIGKILL)


def _kill(child: subprocess.Popen) -> None:
    """Kills the process and its own workers, which share its session."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


def _code(child: subprocess.Popen, passed_on: set[int]) -> int:
    if -child.returncode in passed_on:
        return PREEMPTED
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _report(index: int, code: int, log: Path) -> None:
    """Says which process ended the run and, if it failed, how its log ends; the first one's has been shown."""
    if code == PREEMPTED:
        _say(sys.stderr, f"launch: process {index} stopped with everything saved (exit code {code})\n")
        return
    words = f"launch: process {index} ended with exit code {code}; ending the others; its log is {log}\n"
    if index:
        lines = log.read_text(errors="replace").splitlines()[-TAIL:]
        words += "".join(f"  {index} | {line}\n" for line in lines)
    _say(sys.stderr, words)


def _show(log) -> None:
    new = log.read()
    if new:
        _say(sys.stdout, new.decode(errors="replace"))


def _say(stream: TextIO, words: str) -> None:
    """Prints; the processes go on when the reader leaves."""
    try:
        stream.write(words)
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _Signals:
    """Collects SIGTERM and SIGINT while it is open, to be passed on from the waiting loop."""

    def __enter__(self) -> "_Signals":
        self.count = 0
        self._arrived: list[int] = []
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame) -> None:
        self._arrived.append(number)

    def take(self) -> list[tuple[int, int]]:
        """The signals that came since the last call, each with how many it makes in all."""
        arrived, self._arrived = self._arrived, []
        first, self.count = self.count, self.count + len(arrived)
        return list(enumerate(arrived, first + 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
