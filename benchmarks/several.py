"""Several processes of one run, each of which does a part of a benchmark and says what it found."""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import report
from pretrain.distributed.shutdown import shutdown


def arguments(description: str, part: Callable[..., None]) -> argparse.Namespace:
    """The options that every benchmark has; where this process is one of `parts`, it does its `part` and ends."""
    parser = report.arguments(description)
    parser.add_argument("--part", default="", help="what one of several processes is to do; used by this script itself")
    args = parser.parse_args()
    if args.part:
        part(**json.loads(args.part))
        sys.exit()
    return args


def parts(module: str, folder: Path, processes: int, devices: int, work: dict) -> list[dict]:
    """What so many processes of `devices` virtual CPU devices each found.

    Each runs `python -m benchmarks.MODULE --part WORK`, which ends with `tell`. Ends this program if one fails.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    folder.mkdir(parents=True)
    running, common = [], {"LONGHAUL_COORDINATOR": f"127.0.0.1:{port}", "LONGHAUL_PROCESSES": str(processes)}
    common |= {"LONGHAUL_KEEP_MEMORY": "0", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    for index in range(processes):
        told = json.dumps({"path": str(folder / f"{index}.json"), **work})
        command = [sys.executable, "-m", f"benchmarks.{module}", "--part", told]
        environment = os.environ | common | {"LONGHAUL_PROCESS": str(index)}
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    said = [process.communicate()[1].decode() for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("\n".join(said))
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(processes)]


def tell(path: str, found: dict) -> None:
    """Writes down what a process found, and ends it, together with all others."""
    Path(path).write_text(json.dumps(found))
    shutdown.end(0)
