"""Runs of `quickstart:tiny`, each disturbed once at a random moment and started again, against one left alone.

    python -m benchmarks.soak [--runs=100] [--seed=0] [--jobs=1] [--quick] [--format=json]

The moment is uniform over the life of a run, from when Python has started the program (some hundredths of a second that
no program can answer for) to its end: loading, compiling, updates, saves, evaluations. What
happens then is one of `DISTURBANCES`. The same command is then started until it ends by itself, and every leaf of the
last checkpoint must have the bits of the undisturbed run. The tokenizer and the token store are made once and shared.
Needs Linux.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from benchmarks import report

STEPS = 60  # of quickstart:tiny
STARTS = 5  # of one run, at most: a disturbed one needs two, or three where its only checkpoint was damaged
LIMIT = 600  # seconds that a start may take
MISTAKE, PREEMPTED, KILLED = 2, 75, -signal.SIGKILL

# What may happen to a run, and the exit codes that it may end with then; 0 where that came too late to be noticed.
DISTURBANCES = {
    "kill -9": (KILLED, 0),
    "SIGTERM": (PREEMPTED, 0),
    "SIGINT": (PREEMPTED, 0),
    "full disk": (MISTAKE, 0),
    "truncated file": (KILLED, 0),
    "closed stderr": (0,),
}


class Start:
    """One start of the program, its standard error going through a pipe to a reader that can be ended."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path):
        with log.open("wb") as out:
            self.reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out)
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.reader.stdin
        )
        self.reader.stdin.close()
        self.log = log

    def listens(self) -> bool:
        """Whether the process has taken SIGTERM over, or has ended."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = re.search(r"SigCgt:\s*(\w+)", status)
        return self.process.poll() is not None or bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

    def disturb(self, how: str) -> None:
        if how == "closed stderr":
            self.reader.kill()
        elif how == "full disk":  # from now on no file can grow
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        else:
            numbers = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
            self.process.send_signal(numbers.get(how, signal.SIGKILL))

    def end(self) -> int:
        """The exit code, once the process and what it printed are through."""
        try:
            return self.process.wait(LIMIT)
        finally:
            self.process.kill()
            self.reader.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace")


class Soak:
    """The undisturbed run in `folder`, and the disturbed ones that are held against it."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        cache = os.environ.get("LONGHAUL_CACHE", str(folder / "cache"))
        self.environment = os.environ | {"LONGHAUL_CACHE": cache, "PYTHONUNBUFFERED": "1"}
        self.left_alone(folder / "prepared")  # trains the tokenizer, stores the tokens, compiles
        began = time.monotonic()
        self.left_alone(self.new_workdir("undisturbed"))
        self.life = time.monotonic() - began
        self.leaves = leaves(folder / "undisturbed")

    def start(self, workdir: Path, *more: str) -> Start:
        command = [sys.executable, "-m", "pretrain", "train", "--config=configs/quickstart.py:tiny"]
        options = [f"--workdir={workdir}", f"--config.data.store={self.folder / 'store'}"]
        return Start([*command, *options, *more], self.environment, workdir.with_suffix(".log"))

    def left_alone(self, workdir: Path) -> None:
        start = self.start(workdir)
        if start.end() != 0:
            raise SystemExit(f"the undisturbed run failed:\n{start.said()}")

    def new_workdir(self, name: str) -> Path:
        """A work folder that holds the tokenizer and nothing else."""
        shutil.copytree(self.folder / "prepared" / "tokenizer", self.folder / name / "tokenizer")
        return self.folder / name

    def disturbed(self, number: int) -> tuple[str, float, str]:
        """(disturbance, its moment in seconds, what went wrong, if anything) of one run."""
        rng = random.Random(f"{self.seed} {number}")
        how, moment = rng.choice(list(DISTURBANCES)), rng.uniform(0, self.life)
        workdir = self.new_workdir(f"run-{number}")
        try:
            return how, moment, self._wrong(workdir, how, moment, rng)
        finally:
            shutil.rmtree(workdir)

    def _wrong(self, workdir: Path, how: str, moment: float, rng: random.Random) -> str:
        start = self.start(workdir)
        while not start.listens():
            time.sleep(0.001)
        time.sleep(moment)
        if start.process.poll() is None:
            start.disturb(how)
        code, said = start.end(), start.said()
        if code not in DISTURBANCES[how]:
            return f"exit code {code}:\n{said}"
        if how == "truncated file":
            truncate(workdir, rng)
        elif "Traceback" in said:
            return f"a traceback:\n{said}"
        fresh = ()
        for _ in range(STARTS):
            start = self.start(workdir, *fresh)
            code, said = start.end(), start.said()
            if code == 0:
                ended = leaves(workdir)
                wrong = [name for name in self.leaves if not same(ended.get(name), self.leaves[name])]
                return f"other bits in {', '.join(wrong)}" if wrong or ended.keys() != self.leaves.keys() else ""
            if code == MISTAKE and how == "truncated file" and "--fresh=NAME" in said:
                fresh = ("--fresh=damaged",)  # as the sentence says
                continue
            break
        return f"started again, exit code {code}:\n{said}"


def truncate(workdir: Path, rng: random.Random, part: str = "") -> None:
    """Cuts a random file of the newest checkpoint, or of a folder in it, short, if there is one."""
    found = [path for path in workdir.glob("checkpoints/*") if path.name.isdigit()]
    if found:
        newest = max(found, key=lambda path: int(path.name))
        files = sorted(path for path in (newest / part).rglob("*") if path.is_file() and path.stat().st_size)
        cut = rng.choice(files)
        os.truncate(cut, rng.randrange(cut.stat().st_size))


def leaves(workdir: Path, step: int = STEPS) -> dict[str, np.ndarray]:
    """Every leaf of the last checkpoint's train state, by path, as written."""
    folder = workdir / "checkpoints" / str(step) / "state"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        stored = reader.metadata(folder).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), stored)
        tree = reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def same(a, b) -> bool:
    """Whether two leaves have the same bits."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def main():
    parser = report.arguments(__doc__.split("\n")[0])
    parser.add_argument("--runs", type=report.count, default=100, help="disturbed runs (default: 100; 4 with --quick)")
    parser.add_argument("--seed", type=int, default=0, help="of disturbances and moments")
    parser.add_argument("--jobs", type=report.count, default=1, help="runs at the same time")
    args = parser.parse_args()
    runs = 4 if args.quick else args.runs
    logging.set_verbosity(logging.ERROR)  # Orbax warns of every checkpoint read here
    good, all_runs = Counter(), Counter()
    with tempfile.TemporaryDirectory(prefix="longhaul-soak-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        soak = Soak(Path(folder).resolve(), args.seed)
        for number, (how, moment, wrong) in enumerate(pool.map(soak.disturbed, range(runs))):
            all_runs[how] += 1
            good[how] += not wrong
            if wrong:
                print(f"run {number}: {how} after {moment:.2f} of {soak.life:.2f} s: {wrong}", file=sys.stderr)
            else:
                print(f"run {number}: {how} after {moment:.2f} of {soak.life:.2f} s: the same bits", file=sys.stderr)
    every = report.Result("all", good.total(), f"of {runs} runs end with the same bits", target=runs)
    kinds = [report.Result(how, good[how], f"of {all_runs[how]}", target=all_runs[how]) for how in DISTURBANCES]
    report.show([every, *kinds], args, {"recipe": "quickstart:tiny", "runs": runs, "seed": args.seed})
    return 0 if good.total() == runs else 1


if __name__ == "__main__":
    sys.exit(main())
