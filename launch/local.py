"""Runs the program as several processes of this machine, joined over loopback.

    python -m launch.local --processes 2 --devices 2 -- train --config=configs/quickstart.py --workdir=runs/two

Each process writes a log of its own; the first one's output is shown too. When one ends in error the rest are ended,
and its exit code becomes the launcher's. SIGTERM and Ctrl-C reach every process, so that each can save and stop; a
second one kills them. If the launcher itself is killed, so are they (on Linux), and the same command can start again.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from launch import count, environment, log_folder, parse, parser, positive, restarts, seconds
from launch.output import hints, put, show
from launch.supervise import Child, Signals, again, begin, supervise, with_parent

# On a busy machine devices may be late for one another; after 40 s JAX would take that for the end.
WAIT_FOR_DEVICES = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
PAUSE = 1.0  # seconds before the processes are started again


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
        type=seconds,
        default=30.0,
        help="seconds between asking the rest to stop and killing them (default: 30)",
    )
    restarts(flags)
    flags.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    options, program = parse(flags, argv)
    command = [sys.executable, "-m", "pretrain", *program]
    logs = options.logs or Path("LOGS" if options.dry_run else tempfile.mkdtemp(prefix="longhaul-"))
    if options.dry_run:
        every = [_places(i, options.processes, "127.0.0.1:PORT", options.devices) for i in range(options.processes)]
        show(*(["env", *(f"{name}={value}" for name, value in places.items()), *command] for places in every))
        return 0
    log_folder(flags, logs)
    watch = f"tail -f {shlex.quote(str(logs / 'process-0.log'))}"
    stop = f"Ctrl-C here, or kill -TERM {os.getpid()}"
    numbers = options.processes, options.devices, logs, options.grace, options.restarts
    return launch(command, *numbers, told=lambda: hints(program, watch, stop))


def launch(
    command: Sequence[str],
    processes: int,
    devices: int | None,
    logs: Path,
    grace: float,
    restarts: int = 0,
    told: Callable[[], None] = lambda: None,
) -> int:
    """Runs `command` as `processes` processes and returns the exit code of the first that failed, or 0.

    `devices` None leaves JAX its choice. `restarts` is how often they are started again, as `supervise.again` does.
    `told` says what is to be said before.
    """
    logs.mkdir(parents=True, exist_ok=True)
    paths = [logs / f"process-{index}.log" for index in range(processes)]

    def start(attempt: int) -> int:
        coordinator = f"127.0.0.1:{free_port()}"
        children = []
        for index, path in enumerate(paths):
            places, since = _places(index, processes, coordinator, devices), begin(path, attempt)
            process = _start(command, os.environ | places, path)
            children.append(Child(f"process {index}", process, path, since))
        return supervise(children, grace, signals, more=attempt < restarts)

    with Signals() as signals:
        told()
        put(sys.stdout, f"launch: {count(processes, 'process')}, logs in {logs}\n")
        return again(start, restarts, PAUSE, signals)


def _places(index: int, processes: int, coordinator: str, devices: int | None) -> dict[str, str]:
    """What the environment of process `index` has beside this one's."""
    places = environment(coordinator, processes, index)
    if devices is not None:
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
        flags = [WAIT_FOR_DEVICES, *flags, f"--xla_force_host_platform_device_count={devices}"]
        places |= {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    return places


def _start(command: Sequence[str], environment: dict[str, str], log: Path) -> subprocess.Popen:
    """A process in a session of its own, so that a Ctrl-C reaches it from here alone, and once."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Two runs in one work folder would spoil it, so no process outlives a launcher that was killed.
            preexec_fn=with_parent(signal.SIGKILL),
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
