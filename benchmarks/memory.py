"""Growth of a run's process over hundreds of saves: resident memory, file descriptors, threads.

    python -m benchmarks.memory [--updates=12000] [--quick] [--format=json]

`quickstart:tiny` saves and evaluates every 50 updates. Growth counts from the first sixth of the saves on, when the
process is warm; `--quick` makes only 30 saves.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import report

EVERY, QUICK, WARM = 50, 1500, 6


def measure(pid: int) -> tuple[float, int, int]:
    """(MB of resident memory, descriptors, threads) of a process."""
    facts = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(facts["VmRSS"].split()[0]) / 1000, len(os.listdir(f"/proc/{pid}/fd")), int(facts["Threads"])


def run(updates: int, folder: str) -> list[tuple[int, float, int, int]]:
    """(update, MB, descriptors, threads) after each save of a run."""
    keys = {"train.steps": updates, "checkpoint.every": EVERY, "evaluate.every": EVERY, "log.every": EVERY}
    keys["log.seconds"] = 0
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    recipe = ["--config=configs/quickstart.py:tiny", f"--workdir={folder}/run", *flags]
    process = subprocess.Popen(
        [sys.executable, "-m", "pretrain", "train", *recipe],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"},
    )
    measured, log = [], []
    with process:
        for line in process.stderr:
            log.append(line)
            if step := re.match(r"step ([\d,]+)/", line):
                measured.append((int(step[1].replace(",", "")), *measure(process.pid)))
    if process.returncode:
        sys.exit("the run failed:\n" + "".join(log[-20:]))
    return measured[:-1]  # after the last update the process is ending


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--updates", type=int, default=12_000)
    args = parser.parse_args()
    updates = QUICK if args.quick else args.updates
    with tempfile.TemporaryDirectory() as folder:
        measured = run(updates, folder)
    warm = measured[len(measured) // WARM :]
    saves = len(warm) - 1
    rows = [report.Result(f"resident memory after {len(measured) - saves} saves", warm[0][1], "MB")]
    for column, (name, unit) in enumerate((("memory", "MB"), ("descriptors", ""), ("threads", "")), start=1):
        rows.append(report.Result(f"grown in {saves} saves more: {name}", warm[-1][column] - warm[0][column], unit))
    settings = {"recipe": "quickstart:tiny", "updates": updates, "every": EVERY}
    report.show(rows, args, settings, report.versions(*report.PACKAGES))


if __name__ == "__main__":
    main()
