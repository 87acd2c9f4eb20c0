"""What a run's process holds over hundreds of saves: resident memory, file descriptors, threads.

    python -m benchmarks.memory [--updates=12000] [--chart=FILE.svg] [--quick] [--format=json]

`quickstart:tiny`, which saves and evaluates every 50 updates, is looked at after each save. What it grows by is counted
from the first sixth of the saves on, by when it has warmed up: with --quick, 30 saves, there is little left to count.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import report
from benchmarks.chart import chart

EVERY, QUICK, WARM = 50, 1500, 6


def looked_at(pid: int) -> tuple[float, int, int]:
    """(MB of resident memory, descriptors, threads) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    facts = dict(line.split(":", 1) for line in lines)
    return int(facts["VmRSS"].split()[0]) / 1000, len(os.listdir(f"/proc/{pid}/fd")), int(facts["Threads"])


def run(updates: int, folder: str) -> list[tuple[int, float, int, int]]:
    """(update, MB, descriptors, threads) after each save of a run."""
    keys = {"train.steps": updates, "checkpoint.every": EVERY, "evaluate.every": EVERY, "log.every": EVERY}
    words = [f"--config.{key}={value}" for key, value in keys.items()]
    recipe = ["--config=configs/quickstart.py:tiny", f"--workdir={folder}/run", *words]
    process = subprocess.Popen(
        [sys.executable, "-m", "pretrain", "train", *recipe],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"},
    )
    found, shown = [], []
    with process:
        for line in process.stderr:
            shown.append(line)
            if logged := re.match(r"step ([\d,]+)/", line):
                found.append((int(logged[1].replace(",", "")), *looked_at(process.pid)))
    if process.returncode:
        raise SystemExit("the run did not end as it should:\n" + "".join(shown[-20:]))
    return found[:-1]  # behind the last update the process is about to end


def main():
    parser = report.arguments(__doc__.split("\n")[0])
    parser.add_argument("--updates", type=report.count, default=12_000)
    parser.add_argument("--chart", type=report.new_file, default="", help="SVG file of memory over saves to write")
    args = parser.parse_args()
    updates = QUICK if args.quick else args.updates
    if updates < 3 * EVERY:
        parser.error(f"--updates={updates} are saved less than three times, every {EVERY}; give more")
    with tempfile.TemporaryDirectory() as folder:
        found = run(updates, folder)
    warm = found[len(found) // WARM :]
    saves = len(warm) - 1
    grown = [last - first for first, last in zip(warm[0][1:], warm[-1][1:], strict=True)]
    rows = [
        report.Result(f"resident memory after {len(found) - saves} saves", warm[0][1], "MB"),
        report.Result(f"grown in {saves} saves more: memory", grown[0], "MB"),
        report.Result(f"grown in {saves} saves more: descriptors", grown[1], ""),
        report.Result(f"grown in {saves} saves more: threads", grown[2], ""),
    ]
    if args.chart:
        curve = [step / EVERY for step, *_ in found], [megabytes for _, megabytes, *_ in found]
        chart(args.chart, {"quickstart:tiny": curve}, "saves", "MB of resident memory", logarithmic=False)
    settings = {"recipe": "quickstart:tiny", "updates": updates, "every": EVERY}
    report.show(rows, args, settings, report.versions(*report.PACKAGES))


if __name__ == "__main__":
    main()
