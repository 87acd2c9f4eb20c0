"""Inject faults into real jobs of several processes; each job must end with the bits of an undisturbed one.

    python -m benchmarks.faults [--only=hung,SIGTERM] [--trials=3] [--processes=2] [--seed=0] [--quick] [--format=json]

A job is a small model on processes of two CPU devices each, joined over loopback, with one work folder. A fault happens
at a random moment; then the same command is started until all processes end with 0, as a launcher does. Every leaf of
the last checkpoint and every row of metrics must equal those of the undisturbed job. Needs Linux.
"""

import contextlib
import csv
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
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import logging

from benchmarks import report
from benchmarks.soak import difference, leaves, truncate
from launch.local import free_port, place
from pretrain.metrics.writer import MACHINE

ROOT = Path(__file__).resolve().parents[1]
STEPS = 24
KEYS = {
    "tokenizer.kind": "bytes",
    "model.vocab_size": 257,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.ff": 32,
    "model.dropout_residual": 0.1,  # so that the random state matters too
    "train.steps": STEPS,
    "train.compare_every": 5,
    "checkpoint.every": 4,
    "evaluate.every": 8,
    "evaluate.batches": 1,
    "log.every": 1,
    "log.seconds": 0,
    "log.tensorboard": "false",
}
MISTAKE, FAULT, PREEMPTED = 2, 69, 75
STARTS = 6  # of one job, at most
LIMIT = 600  # seconds for a start to end, or for a word in its log

# Runs the program after `patch`, Python that injects a fault from inside.
PATCHED = "\nfrom pretrain.__main__ import run\nrun()"
# Process 1 sleeps for SECONDS before batch AT.
SLEEP = """
import os, time, pretrain.training.startup as startup
own = startup.RunParts.batches
def slow(self, position):
    for count, batch in enumerate(own(self, position), 1):
        if os.environ["LONGHAUL_PROCESS"] == "1" and count == AT:
            time.sleep(SECONDS)
        yield batch
startup.RunParts.batches = slow
"""
# Flips the highest bit of a mantissa in the first large array on the first device of process 1 after update AT; a
# lower bit could be rounded away by the next update, before devices are compared.
CORRUPT = """
import os, jax, numpy as np, pretrain.step.jit as jit
own, count = jit.JitSpec.train_step, [0]
def step(self, state, batch):
    state, metrics = own(self, state, batch)
    count[0] += 1
    if os.environ["LONGHAUL_PROCESS"] == "1" and count[0] == AT:
        leaves, tree = jax.tree_util.tree_flatten(state)
        index = next(i for i, leaf in enumerate(leaves) if leaf.ndim > 2)
        array = leaves[index]
        shards = [np.array(shard.data) for shard in array.addressable_shards]
        shards[0].reshape(-1).view(np.uint32)[0] ^= 1 << 22
        shards = [jax.device_put(a, s.device) for a, s in zip(shards, array.addressable_shards)]
        leaves[index] = jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
        state = jax.tree_util.tree_unflatten(tree, leaves)
    return state, metrics
jit.JitSpec.train_step = step
"""


class Job:
    """One start of `pretrain` as several processes of two virtual CPU devices each."""

    running: list["Job"] = []  # all jobs that may have live processes  # noqa: RUF012

    def __init__(self, arguments: Sequence[str], logs: Path, processes: int = 2, patch: str = ""):
        program = ["-c", patch + PATCHED] if patch else ["-m", "pretrain"]
        logs.mkdir(parents=True, exist_ok=True)
        attempt = len(list(logs.iterdir())) // processes
        self.logs = [logs / f"{attempt}-process-{index}.log" for index in range(processes)]
        coordinator, self.processes = f"127.0.0.1:{free_port()}", []
        Job.running.append(self)
        for index, path in enumerate(self.logs):
            variables = place(index, processes, coordinator, devices=2)
            # Programs run for a second: without optimisation they compile in a quarter of the time.
            variables["XLA_FLAGS"] += " --xla_backend_optimization_level=0"
            with path.open("wb") as out:
                process = subprocess.Popen(
                    [sys.executable, *program, *arguments],
                    cwd=ROOT,
                    env=os.environ | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.processes.append(process)

    def log(self, index: int = 0) -> str:
        return self.logs[index].read_text(errors="replace")

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Wait for a condition; False if a process ends first."""
        deadline = time.monotonic() + LIMIT
        while all(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.005)
        return False

    def wait_for_step(self, step: int) -> bool:
        return self.wait_until(lambda: re.search(f"step {step}/{STEPS}", self.log()))

    def signal(self, number: int, *indices: int) -> None:
        for index in indices:
            if self.processes[index].poll() is None:
                self.processes[index].send_signal(number)

    def end(self, except_for: Sequence[int] = ()) -> list[int]:
        """Exit codes, once all processes but some have ended; kills the rest with their readers."""
        try:
            for index, process in enumerate(self.processes):
                if index not in except_for:
                    process.wait(LIMIT)
        finally:
            self.kill()
        return [process.returncode for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        Job.running.remove(self)

    def readers(self, index: int) -> list[int]:
        """Processes that read data for process `index`."""
        threads = Path(f"/proc/{self.processes[index].pid}/task").iterdir()
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
        return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


class Faults:
    """The undisturbed job in a folder, and the jobs to compare with it."""

    def __init__(self, folder: Path, processes: int):
        self.folder, self.processes = folder, processes
        (folder / "text").mkdir()
        for path in sorted(ROOT.glob("pretrain/*.py")):
            shutil.copy(path, folder / "text")
        os.environ.setdefault("LONGHAUL_CACHE", str(folder / "cache"))
        codes = self.start(folder / "whole").end()
        if any(codes):
            sys.exit(f"the undisturbed job ended with {codes}; its logs are in {folder}")
        self.leaves, self.rows = leaves(folder / "whole", STEPS), read_metrics(folder / "whole")

    def start(self, workdir: Path, store: bool = True, patch: str = "", **keys) -> Job:
        keys = (
            KEYS | {"data.train": f"text:{self.folder}/text/*.py"} | {k.replace("__", "."): v for k, v in keys.items()}
        )
        keys |= {"data.store": self.folder / "store"} if store else {}
        flags = [f"--config.{key}={value}" for key, value in keys.items()]
        arguments = ["train", "--config=configs/quickstart.py:tiny", f"--workdir={workdir}", *flags]
        return Job(arguments, workdir.with_suffix(".logs"), self.processes, patch)

    def trial(self, name: str, number: int, seed: int) -> tuple[list, str]:
        """(exit codes of every start, an error or nothing) of one disturbed job."""
        workdir = self.folder / f"{name.replace(' ', '-').replace(',', '')}-{number}"
        try:
            codes = [FAULTS[name](self, workdir, random.Random(f"{seed} {name} {number}"))]
        except AssertionError as error:
            return [], str(error)
        while any(codes[-1]):
            if len(codes) == STARTS:
                return codes, f"not done after {STARTS} starts"
            codes.append(self.start(workdir).end())
            if MISTAKE in codes[-1]:
                return codes, "the next start took the fault for a mistake"
        error = difference(leaves(workdir, STEPS), self.leaves)
        if not error and read_metrics(workdir) != self.rows:
            error = "different metrics"
        return codes, error


def read_metrics(workdir: Path) -> dict[str, list[dict[str, str]]]:
    """Rows by file, without what measures the machine."""
    found = {}
    for path in sorted((workdir / "metrics").glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        found[path.name] = [{name: value for name, value in row.items() if name not in MACHINE} for row in rows]
    return found


def start_at_random(faults: Faults, workdir: Path, rng: random.Random, last: int = STEPS - 4, **options) -> Job:
    """A job that has logged a random update."""
    job = faults.start(workdir, **options)
    job.wait_for_step(rng.randint(1, last))
    return job


def signal_processes(number: int, *indices: int) -> Callable:
    """Signal some processes, by default all, at a random update."""

    def inject(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
        job = start_at_random(faults, workdir, rng)
        job.signal(number, *(indices or range(faults.processes)))
        return job.end(except_for=indices if number == signal.SIGSTOP else ())

    return inject


def preempt(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
    job = start_at_random(faults, workdir, rng)
    job.signal(signal.SIGTERM, rng.randrange(faults.processes))
    codes = job.end()
    assert {*codes} == {PREEMPTED}, f"exit codes {codes}"
    return codes


def kill_during_restart(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
    job = start_at_random(faults, workdir, rng, STEPS // 2)
    job.signal(signal.SIGTERM, 0)
    job.end()
    job = faults.start(workdir)
    time.sleep(rng.uniform(2, 10))  # imports, restore, compilation
    job.signal(signal.SIGKILL, rng.randrange(faults.processes))
    return job.end()


def kill_during_save(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
    job, step = faults.start(workdir), 4 * rng.randint(1, 4)
    assert job.wait_until(lambda: any((workdir / "checkpoints").glob(f"{step}.orbax-checkpoint-tmp*"))), "no save seen"
    job.signal(signal.SIGKILL, rng.randrange(faults.processes))
    return job.end()


def kill_during_prepare(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
    job = faults.start(workdir, store=False)
    job.wait_until(lambda: (workdir / "data").exists())
    time.sleep(rng.uniform(0, 0.5))
    job.signal(signal.SIGKILL, rng.randrange(faults.processes))
    return job.end()


def patched(patch: str, first: int, last: int, expected: int, **options) -> Callable:
    """Run a patched program, whose patch acts at an update between two others; some exit code must be `expected`."""

    def inject(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
        codes = faults.start(workdir, patch=patch.replace("AT", str(rng.randint(first, last))), **options).end()
        assert expected in codes and (expected or not any(codes)), f"exit codes {codes}"
        return codes

    return inject


def kill_reader(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
    job = start_at_random(faults, workdir, rng, 12, data__workers=1)
    for reader in job.readers(1):
        os.kill(reader, signal.SIGKILL)
    return job.end()


def fill_disk(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
    job = start_at_random(faults, workdir, rng)
    for process in job.processes:
        if process.poll() is None:  # no file can grow from now on
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return job.end()


def damage_checkpoint(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
    """Kill all once there are two checkpoints, then truncate a file of the newer one."""
    job = faults.start(workdir)
    job.wait_until(lambda: sum(path.name.isdigit() for path in workdir.glob("checkpoints/*")) > 1)
    job.signal(signal.SIGKILL, *range(faults.processes))
    codes = job.end()
    truncate(workdir, rng, "state")
    return codes


def start_twice(faults: Faults, workdir: Path, rng: random.Random) -> list[int]:
    job = start_at_random(faults, workdir, rng, 8, patch=SLEEP.replace("AT", "12").replace("SECONDS", "60"))
    second = faults.start(workdir).end()
    assert {*second} == {MISTAKE}, f"exit codes of the second job: {second}"
    return job.end()


FAULTS = {  # name: function that injects it and returns exit codes
    "kill -9 of one worker": signal_processes(signal.SIGKILL, 1),
    "kill -9 of the coordinator": signal_processes(signal.SIGKILL, 0),
    "kill -9 of all": signal_processes(signal.SIGKILL),
    "kill -9 during restore": kill_during_restart,
    "kill -9 during a save": kill_during_save,
    "kill -9 during prepare": kill_during_prepare,
    "SIGTERM to one process": preempt,
    "hung worker": patched(SLEEP.replace("SECONDS", "3600"), 6, 20, FAULT, train__patience=5),
    "stopped worker": signal_processes(signal.SIGSTOP, 1),
    "stopped coordinator": signal_processes(signal.SIGSTOP, 0),
    "slow input worker": patched(SLEEP.replace("SECONDS", "4"), 3, 20, 0, train__patience=20),
    "killed input worker": kill_reader,
    "full disk": fill_disk,
    "torn file in a checkpoint": damage_checkpoint,
    "two jobs on one folder": start_twice,
    "corrupted replica": patched(CORRUPT, 3, 20, FAULT),
}
QUICK = ("kill -9 of one worker", "SIGTERM to one process")


def main():
    parser = report.arguments(__doc__)
    parser.add_argument("--trials", type=int, default=3, help="of each fault (default: 3; 1 with --quick)")
    parser.add_argument("--processes", type=int, default=2, help="of a job (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument(
        "--only", default="", help="only faults whose names contain one of these words, comma-separated"
    )
    parser.add_argument("--keep", type=Path, help="a new folder for the jobs and their logs (default: a temporary one)")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)  # Orbax warns about every checkpoint read here
    words = [word.strip() for word in args.only.split(",") if word.strip()]
    names = [n for n in FAULTS if (any(word in n for word in words) if words else n in QUICK or not args.quick)]
    if not names:
        parser.error(f"--only={args.only} matches no fault; choose from: {', '.join(FAULTS)}")
    trials, results = 1 if args.quick else args.trials, []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="longhaul-faults-") as temporary:
        folder = args.keep or Path(temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            faults = Faults(folder, args.processes)
            for name in names:
                good, endings = 0, Counter()
                for number in range(trials):
                    codes, error = faults.trial(name, number, args.seed)
                    good += not error
                    endings.update(" ".join(map(str, first)) for first in codes[:1])
                    print(f"{name}, trial {number}: {error or 'same bits'}; exit codes {codes}", file=sys.stderr)
                first = "; ".join(f"{codes} ({times})" for codes, times in endings.most_common())
                unit = f"of {trials} with the same bits; first ended with {first}"
                results.append(report.Result(name, good, unit, target=trials))
        finally:
            for job in [*Job.running]:  # jobs are in sessions of their own and would outlive this program
                job.kill()
    report.show(results, args, {"steps": STEPS, "processes": args.processes, "trials": trials, "seed": args.seed})
    return 0 if all(result.value == trials for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
