"""Time from the start of the process to the first update of `quickstart:tiny`, cold and cached.

    python -m benchmarks.startup [--quick] [--format=json]

Cold: an empty work folder and an empty cache, so the tokenizer is trained and the text tokenised too. Cached: an empty
work folder, with compiled programs in the cache.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import report

TARGETS = {"cold": 15.0, "cached": 8.0}  # seconds


def first_update(workdir: Path, cache: Path) -> float:
    """Seconds until the program reports its first update."""
    shutil.rmtree(workdir, ignore_errors=True)
    recipe = ["--config=configs/quickstart.py:tiny", "--config.log.every=1", f"--workdir={workdir}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "LONGHAUL_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "pretrain", "train", *recipe], stderr=subprocess.PIPE, text=True, env=environment
    )
    log = []
    for line in process.stderr:
        log.append(line)
        if line.startswith("step 1/"):
            elapsed = time.perf_counter() - began
            process.kill()
            process.communicate()
            return elapsed
    sys.exit("the run ended before its first update:\n" + "".join(log))


def main():
    args = report.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workdir, cache = Path(folder) / "run", Path(folder) / "cache"
        times = {"cold": [], "cached": []}
        for _ in range(1 if args.quick else 5):
            shutil.rmtree(cache, ignore_errors=True)
            for seconds in times.values():
                seconds.append(first_update(workdir, cache))
    rows = [
        report.Result(f"first update, {name}", statistics.median(t), "s", target=TARGETS[name], spread=(min(t), max(t)))
        for name, t in times.items()
    ]
    report.show(rows, args, {"recipe": "quickstart:tiny"}, report.versions(*report.PACKAGES))


if __name__ == "__main__":
    main()
