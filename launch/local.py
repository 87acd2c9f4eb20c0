"""Run the program as several processes of this machine.

    python -m launch.local --processes 2 --devices 2 -- train --config=configs/quickstart.py --workdir=runs/two

Each process writes its own log; the output of process 0 is shown too. If one fails the others are asked to stop,
and its exit code becomes the launcher's. SIGTERM and Ctrl-C reach every process, so that each saves and stops; a
second one kills them. The processes die with the launcher (on Linux).
"""

import os
import shlex
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launch import common
from launch.supervisor import Process, Signals, run_attempts, supervise

# XLA ends a process whose CPU devices are 40 s late for a collective; on a busy machine that happens.
WAIT_FOR_DEVICES = "--xla_cpu_collective_call_terminate_timeout_seconds=600"


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    flags = common.parser("local", __doc__)
    common.add(flags, "--processes", 2, "number of processes")
    devices = "virtual CPU devices per process (default: the machine's own)"
    common.add(flags, "--devices", None, devices, type=common.POSITIVE)
    common.add(flags, "--logs", None, "folder of process-0.log and so on (default: a new one)")
    common.add(flags, "--grace", 30.0, "seconds between asking the others to stop and a kill")
    options, program = common.parse(flags, argv)
    command = [sys.executable, "-m", "pretrain", *program]
    if options.dry_run:
        for index in range(options.processes):
            variables = place(index, options.processes, "127.0.0.1:PORT", options.devices)
            common.show([["env", *(f"{key}={value}" for key, value in variables.items()), *command]])
        return 0
    logs = Path(options.logs or tempfile.mkdtemp(prefix="longhaul-"))
    watch = f"tail -f {shlex.quote(str(logs / 'process-0.log'))}"
    common.hints(program, watch, f"Ctrl-C here, or kill -TERM {os.getpid()}")
    return launch(command, options.processes, options.devices, logs, options.grace, options.restarts)


def launch(
    command: Sequence[str], processes: int, devices: int | None, logs: Path, grace: float, restarts: int = 0
) -> int:
    """Run `command` as several processes; return the exit code of the first that failed, or 0."""
    logs.mkdir(parents=True, exist_ok=True)

    def start(attempt: int) -> int:
        coordinator = f"127.0.0.1:{free_port()}"
        places = [place(index, processes, coordinator, devices) for index in range(processes)]
        logged = [logs / f"process-{index}.log" for index in range(processes)]
        workers = [Process(f"process {i}", command, logged[i], places[i]) for i in range(processes)]
        return supervise(workers, grace, signals)

    with Signals() as signals:
        return run_attempts(start, restarts, 1.0, signals)


def place(index: int, processes: int, coordinator: str, devices: int | None) -> dict[str, str]:
    """Environment of process `index`."""
    variables = common.environment(coordinator, processes, index)
    if devices is not None:
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
        flags = [WAIT_FOR_DEVICES, *flags, f"--xla_force_host_platform_device_count={devices}"]
        variables |= {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    return variables


def free_port() -> int:
    """A TCP port of loopback that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
