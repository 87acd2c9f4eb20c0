"""Disturb runs of `quickstart:tiny` at random moments; each must end with the bits of an undisturbed one.

    python -m benchmarks.soak [--runs=100] [--seed=0] [--jobs=1] [--quick] [--format=json]

The moment is uniform over the life of a run, from Python's start to its end: imports, compilation, updates, saves,
evaluations. Then the same command is started until it ends by itself, and every leaf of the last checkpoint must have
the bits of the undisturbed run. Tokenizer and token store are made once and shared. Needs Linux.
"""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from benchmarks import report

STEPS = 60  # of quickstart:tiny
STARTS = 5  # of one run, at most: two after a disturbance, three if its only checkpoint was damaged
LIMIT = 600  # seconds that a start may take
MISTAKE = 2
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "kill -9": signal.SIGKILL}
DISTURBANCES = ("kill -9", "SIGTERM", "SIGINT", "full disk", "truncated file", "closed stderr")


class Start:
    """One start of the program, whose standard error goes through a pipe to a reader that can be killed."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path):
        with log.open("wb") as out:
            self.reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out)
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.reader.stdin
        )
        self.reader.stdin.close()
        self.log = log

    def wait_for_handler(self) -> None:
        """Wait until the process handles SIGTERM, or has ended: before that no program can answer."""
        status = Path(f"/proc/{self.process.pid}/status")
        while self.process.poll() is None:
            caught = int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16)
            if caught >> (signal.SIGTERM - 1) & 1:
                return
            time.sleep(0.001)

    def disturb(self, how: str) -> None:
        if how == "closed stderr":
            self.reader.kill()
        elif how == "full disk":  # no file can grow from now on
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        else:
            self.process.send_signal(SIGNALS.get(how, signal.SIGKILL))

    def end(self) -> tuple[int, str]:
        """(exit code, log) once the process has ended."""
        try:
            code = self.process.wait(LIMIT)
        finally:
            self.process.kill()
            self.reader.wait()
        return code, self.log.read_text(errors="replace")


class Soak:
    """The undisturbed run in a folder, and the disturbed ones to compare with it."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        cache = os.environ.get("LONGHAUL_CACHE", str(folder / "cache"))
        self.environment = os.environ | {"LONGHAUL_CACHE": cache, "PYTHONUNBUFFERED": "1"}
        self.run_undisturbed(folder / "prepared")  # trains the tokenizer, stores the tokens, compiles
        began = time.monotonic()
        self.run_undisturbed(self.new_workdir("undisturbed"))
        self.life = time.monotonic() - began
        self.leaves = leaves(folder / "undisturbed")

    def start(self, workdir: Path, *more: str) -> Start:
        command = [sys.executable, "-m", "pretrain", "train", "--config=configs/quickstart.py:tiny"]
        options = [f"--workdir={workdir}", f"--config.data.store={self.folder / 'store'}"]
        return Start([*command, *options, *more], self.environment, workdir.with_suffix(".log"))

    def run_undisturbed(self, workdir: Path) -> None:
        code, log = self.start(workdir).end()
        if code:
            sys.exit(f"the undisturbed run failed:\n{log}")

    def new_workdir(self, name: str) -> Path:
        """A work folder with nothing but the tokenizer."""
        shutil.copytree(self.folder / "prepared" / "tokenizer", self.folder / name / "tokenizer")
        return self.folder / name

    def disturb(self, number: int) -> tuple[str, float, str]:
        """(disturbance, its moment in seconds, an error or nothing) of one run."""
        rng = random.Random(f"{self.seed} {number}")
        how, moment = rng.choice(DISTURBANCES), rng.uniform(0, self.life)
        workdir = self.new_workdir(f"run-{number}")
        start = self.start(workdir)
        start.wait_for_handler()
        time.sleep(moment)
        if start.process.poll() is None:
            start.disturb(how)
        start.end()
        if how == "truncated file":
            truncate(workdir, rng)
        fresh, code, log = (), None, ""
        for _ in range(STARTS):
            code, log = self.start(workdir, *fresh).end()
            if not (code == MISTAKE and how == "truncated file" and "--fresh=NAME" in log):
                break
            fresh = ("--fresh=damaged",)  # the remedy that the error names
        error = f"exit code {code} of the next start:\n{log}" if code else difference(leaves(workdir), self.leaves)
        shutil.rmtree(workdir)
        return how, moment, error


def truncate(workdir: Path, rng: random.Random, part: str = "") -> None:
    """Truncate a random file of the newest checkpoint, or of a folder in it, if there is one."""
    checkpoints = [path for path in workdir.glob("checkpoints/*") if path.name.isdigit()]
    if checkpoints:
        newest = max(checkpoints, key=lambda path: int(path.name))
        files = sorted(path for path in (newest / part).rglob("*") if path.is_file() and path.stat().st_size)
        file = rng.choice(files)
        os.truncate(file, rng.randrange(file.stat().st_size))


def leaves(workdir: Path, step: int = STEPS) -> dict[str, np.ndarray]:
    """Leaves of a checkpoint's train state, by path."""
    folder = workdir / "checkpoints" / str(step) / "state"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        stored = reader.metadata(folder).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), stored)
        tree = reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> str:
    """Names of leaves whose bits differ, or nothing."""
    if a.keys() != b.keys():
        return f"different leaves: {sorted(a.keys() ^ b.keys())}"
    pairs = {name: (np.asarray(a[name]), np.asarray(b[name])) for name in a}
    bits = {name: [(array.dtype, array.shape, array.tobytes()) for array in pair] for name, pair in pairs.items()}
    names = [name for name, (ours, theirs) in bits.items() if ours != theirs]
    return f"different bits in {', '.join(names)}" if names else ""


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=100, help="disturbed runs (default: 100; 4 with --quick)")
    parser.add_argument("--seed", type=int, default=0, help="of disturbances and moments")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    args = parser.parse_args()
    runs = 4 if args.quick else args.runs
    logging.set_verbosity(logging.ERROR)  # Orbax warns about every checkpoint read here
    good, total = Counter(), Counter()
    with tempfile.TemporaryDirectory(prefix="longhaul-soak-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        soak = Soak(Path(folder).resolve(), args.seed)
        for number, (how, moment, error) in enumerate(pool.map(soak.disturb, range(runs))):
            total[how] += 1
            good[how] += not error
            print(
                f"run {number}: {how} after {moment:.2f} of {soak.life:.2f} s: {error or 'same bits'}", file=sys.stderr
            )
    rows = [report.Result("all", good.total(), f"of {runs} runs end with the same bits", target=runs)]
    rows += [report.Result(how, good[how], f"of {total[how]}", target=total[how]) for how in DISTURBANCES]
    report.show(rows, args, {"recipe": "quickstart:tiny", "runs": runs, "seed": args.seed})
    return 0 if good.total() == runs else 1


if __name__ == "__main__":
    sys.exit(main())
