"""Faults that pods meet, done to real jobs: each must end with the bits of the undisturbed job.

    python -m benchmarks.faults [--only=hung,SIGTERM] [--trials=3] [--processes=2] [--seed=0] [--quick] [--format=json]

A job is a small model in so many processes of two devices each, which talk over loopback and share a work folder. One
fault of `FAULTS` is done to it at a random moment of its kind; then the same command is started until all processes end
with 0, as a launcher would, and every leaf of the last checkpoint's train state and every row of metrics must be those
of the job that was left alone. What a fault may end a job with is part of its row in the table. Needs Linux, and a C
compiler for the folder that fails and the clocks that differ. Ctrl-C ends it with the table of what was done.
"""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import logging

from benchmarks import report
from benchmarks.job import CORRUPT, ROOT, SLEEPY, UNHURRIED, Job, ended
from benchmarks.soak import leaves, same, truncate

STEPS = 24
SMALL = {
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
    "log.tensorboard": "false",
}
MISTAKE, FAULT, PREEMPTED, KILLED, ABORTED = 2, 69, 75, -signal.SIGKILL, -signal.SIGABRT
STARTS = 6  # of one job, at most


@dataclass(frozen=True)
class Fault:
    """What is done to a job, and the exit codes that its processes may then end with."""

    do: Callable  # (matrix, workdir, random numbers) -> exit codes, those of each start, or what went wrong
    codes: tuple[int, ...]
    quick: bool = False  # done with --quick too


def failing_folders(folder: Path) -> str:
    """The library `away.c`, made in `folder`, to be preloaded; empty where there is no C compiler."""
    library = str(folder / "away.so")
    source = str(ROOT / "benchmarks" / "away.c")
    try:
        done = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"])
        return "" if done.returncode else library
    except FileNotFoundError:
        return ""


class Matrix:
    """The job that is left alone, in `folder`, and those that are held against it."""

    def __init__(self, folder: Path, processes: int):
        self.folder, self.count = folder, processes
        self.preload = failing_folders(folder)
        (folder / "text").mkdir()
        for path in sorted(ROOT.glob("pretrain/*.py")):
            shutil.copy(path, folder / "text")
        os.environ.setdefault("LONGHAUL_CACHE", str(folder / "cache"))
        codes = self.start(folder / "whole").end()
        if any(codes):
            raise SystemExit(f"the job that was left alone ended with {codes}; its logs are in {folder}")
        self.leaves, self.rows = leaves(folder / "whole", STEPS), rows(folder / "whole")

    def start(self, workdir: Path, store: bool = True, patch: str = "", extra=lambda index: {}, **keys) -> Job:
        values = (
            SMALL
            | {"data.train": f"text:{self.folder}/text/*.py"}
            | ({"data.store": self.folder / "store"} if store else {})
        )
        values |= {name.replace("__", "."): value for name, value in keys.items()}
        flags = [f"--config.{key}={value}" for key, value in values.items()]
        arguments = ["train", "--config=configs/quickstart.py:tiny", f"--workdir={workdir}", *flags]
        return Job(arguments, workdir.with_suffix(".logs"), self.count, patch=patch, extra=extra)

    def trial(self, name: str, number: int, seed: int) -> tuple[list, str]:
        """(exit codes of every start, what went wrong if anything) of one disturbed job."""
        rng, fault = random.Random(f"{seed} {name} {number}"), FAULTS[name]
        workdir = self.folder / f"{name.replace(' ', '-').replace(',', '')}-{number}"
        codes = fault.do(self, workdir, rng)
        if isinstance(codes, str):
            return [], codes
        ended = codes if isinstance(codes[0], list) else [codes]
        if not {code for codes in ended for code in codes} <= {0, *fault.codes}:
            return ended, f"exit codes {ended}"
        while any(ended[-1]):
            if len(ended) == STARTS:
                return ended, f"not done after {STARTS} starts"
            ended.append(self.start(workdir).end())
            if MISTAKE in ended[-1]:
                return ended, "started again, it took the fault for a mistake"
        wrong = self._wrong(workdir)
        if not wrong:
            shutil.rmtree(workdir)
        return ended, wrong

    def _wrong(self, workdir: Path) -> str:
        found = leaves(workdir, STEPS)
        unlike = [name for name in self.leaves if not same(found.get(name), self.leaves[name])]
        if unlike or found.keys() != self.leaves.keys():
            return f"other bits in {', '.join(unlike)}"
        return "" if rows(workdir) == self.rows else "other rows of metrics"


def rows(workdir: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((workdir / "metrics").glob("*.csv"))}


def at_a_step(job: Job, rng: random.Random, last: int = STEPS - 4) -> bool:
    return job.until_said(f"step {rng.randint(1, last)}/{STEPS}")


def killed(*who: int) -> Callable:
    """kill -9 of those processes, of all where none is named, at a random update."""

    def do(matrix: Matrix, workdir: Path, rng: random.Random):
        job = matrix.start(workdir)
        at_a_step(job, rng)
        job.signal(signal.SIGKILL, *(who or range(matrix.count)))
        return job.end()

    return do


def killed_at(found: Callable, store: bool = True, before: Callable | None = None, patch: str = "") -> Callable:
    """kill -9 of a random process as soon as `found(job, workdir, random numbers)`; `before` starts the job's life."""

    def do(matrix: Matrix, workdir: Path, rng: random.Random):
        if before:
            before(matrix, workdir, rng)
        job = matrix.start(workdir, store, patch)
        if not found(job, workdir, rng):
            job.end()
            return "the moment did not come"
        job.signal(signal.SIGKILL, rng.randrange(matrix.count))
        return job.end()

    return do


def half(matrix: Matrix, workdir: Path, rng: random.Random) -> None:
    """A job that was stopped on its way, so that the next start restores."""
    job = matrix.start(workdir)
    at_a_step(job, rng, STEPS // 2)
    job.signal(signal.SIGTERM, 0)
    job.end()


def restoring(job: Job, workdir: Path, rng: random.Random) -> bool:
    came = job.until_said("reading the train state")
    time.sleep(rng.uniform(0, 1))
    return came and "restored checkpoint" not in job.said()


def saving(job: Job, workdir: Path, rng: random.Random) -> bool:
    wanted = 4 * rng.randint(1, 4)
    return job.until(lambda: any((workdir / "checkpoints").glob(f"{wanted}.orbax-checkpoint-tmp*")))


def preparing(job: Job, workdir: Path, rng: random.Random) -> bool:
    came = job.until(lambda: (workdir / "data").exists())
    time.sleep(rng.uniform(0, 0.5))
    return came


def sigterm(matrix: Matrix, workdir: Path, rng: random.Random):
    job = matrix.start(workdir)
    at_a_step(job, rng)
    job.signal(signal.SIGTERM, rng.randrange(matrix.count))
    codes = job.end()
    return codes if len({*codes}) == 1 else f"not all ended alike: {codes}"


def hung(matrix: Matrix, workdir: Path, rng: random.Random):
    job = matrix.start(workdir, patch=SLEEPY.format(at=rng.randint(6, 20), seconds=3600), train__patience=5)
    codes = job.end()
    named = all("process 1 is late" in job.said(i) and "in sleepy" in job.said(i) for i in range(matrix.count))
    return codes if named and {*codes} == {FAULT} else f"{codes}, and said: {job.said()[-2000:]}"


def stopped(who: int) -> Callable:
    def do(matrix: Matrix, workdir: Path, rng: random.Random):
        job = matrix.start(workdir)
        at_a_step(job, rng)
        job.signal(signal.SIGSTOP, who)
        return job.end(all_but=[who], seconds=120)

    return do


def slow_input(matrix: Matrix, workdir: Path, rng: random.Random):
    return matrix.start(workdir, patch=SLEEPY.format(at=rng.randint(3, 20), seconds=4), train__patience=20).end()


def killed_reader(matrix: Matrix, workdir: Path, rng: random.Random):
    job = matrix.start(workdir, data__workers=1)
    at_a_step(job, rng, 12)
    for reader in job.readers(1):
        os.kill(reader, signal.SIGKILL)
    return job.end()


def away(seconds: float, moment: Callable = lambda job, workdir, rng: at_a_step(job, rng)) -> Callable:
    """The work folder fails with EIO for so long; the job is started again meanwhile, as a launcher would."""

    def do(matrix: Matrix, workdir: Path, rng: random.Random):
        flag = matrix.folder / f"{workdir.name}.flag"
        surroundings = {"AWAY_FLAG": str(flag), "AWAY_FOLDER": str(workdir), "LD_PRELOAD": matrix.preload}
        job = matrix.start(workdir, extra=lambda index: surroundings)
        if not moment(job, workdir, rng):
            job.end()
            return "the moment did not come"
        flag.touch()
        back = threading.Timer(seconds, flag.unlink)
        back.start()
        ended = [job.end()]
        while flag.exists() and any(ended[-1]):
            ended.append(matrix.start(workdir, extra=lambda index: surroundings).end())
        back.join()
        return ended

    return do


def full_disk(matrix: Matrix, workdir: Path, rng: random.Random):
    job = matrix.start(workdir)
    at_a_step(job, rng)
    for process in job.processes:
        if process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return job.end()


def skew(matrix: Matrix, workdir: Path, rng: random.Random):
    """Process 1's clock is an hour behind, and that of the next start's processes a day."""
    clocks = {0: "0", 1: "-3600"}
    job = matrix.start(
        workdir, extra=lambda index: {"LD_PRELOAD": matrix.preload, "CLOCK_SKEW": clocks.get(index, "1800")}
    )
    job.until_said(f"step {rng.randint(9, STEPS - 4)}/{STEPS}")  # there is a checkpoint to go on from
    job.signal(signal.SIGKILL, 1)
    codes = job.end()
    behind = {"LD_PRELOAD": matrix.preload, "CLOCK_SKEW": "-86400"}
    return [codes, matrix.start(workdir, extra=lambda index: behind).end()]


def torn(matrix: Matrix, workdir: Path, rng: random.Random):
    """kill -9 of all once there are two checkpoints, of which a file of the newer is cut short."""
    job = matrix.start(workdir)
    job.until(lambda: len([path for path in workdir.glob("checkpoints/*") if path.name.isdigit()]) > 1)
    if not job.running:
        job.end()
        return "the moment did not come"
    job.signal(signal.SIGKILL, *range(matrix.count))
    codes = job.end()
    truncate(workdir, rng, "state")
    job = matrix.start(workdir)
    again = job.end()
    return [codes, again] if "it is set aside in" in job.said() else f"the damage was not seen: {again}"


def two_jobs(matrix: Matrix, workdir: Path, rng: random.Random):
    job = matrix.start(workdir, patch=SLEEPY.format(at=12, seconds=60))  # so that it is there when the second begins
    at_a_step(job, rng, 8)
    refused = matrix.start(workdir).end()
    codes = job.end()
    return codes if {*refused} == {MISTAKE} else f"the second job ended with {refused}"


def corrupted(matrix: Matrix, workdir: Path, rng: random.Random):
    job = matrix.start(workdir, patch=CORRUPT.format(at=rng.randint(3, 20)))
    codes = job.end()
    named = "of process 1 on " in job.said() and "the devices differ in 'params/" in job.said()
    return codes if named else f"{codes}, and said: {job.said()[-2000:]}"


DEATHS = (KILLED, FAULT, ABORTED)
FAULTS = {
    "kill -9 of one worker": Fault(killed(1), DEATHS, quick=True),
    "kill -9 of the coordinator": Fault(killed(0), DEATHS),
    "kill -9 of all": Fault(killed(), (KILLED,)),
    "kill -9 during restore": Fault(killed_at(restoring, before=half, patch=UNHURRIED), DEATHS),
    "kill -9 during a save": Fault(killed_at(saving), DEATHS),
    "kill -9 during prepare": Fault(killed_at(preparing, store=False), DEATHS),
    "SIGTERM to one process": Fault(sigterm, (PREEMPTED,), quick=True),
    "hung worker": Fault(hung, (FAULT,)),
    "stopped worker": Fault(stopped(1), DEATHS),
    "stopped coordinator": Fault(stopped(0), DEATHS),
    "slow input worker": Fault(slow_input, ()),
    "killed input worker": Fault(killed_reader, (PREEMPTED,)),
    "work folder away for 15 s": Fault(away(15), DEATHS),
    "work folder away for a minute": Fault(away(60), DEATHS),
    "work folder away during a save": Fault(away(15, saving), DEATHS),
    "full disk": Fault(full_disk, (MISTAKE,)),
    "clocks that differ": Fault(skew, DEATHS),
    "torn file in a checkpoint": Fault(torn, (KILLED,)),
    "two jobs on one folder": Fault(two_jobs, ()),
    "corrupted replica": Fault(corrupted, (FAULT,)),
}
COMPILED = {name for name in FAULTS if name.startswith(("work folder away", "clocks"))}  # need a C compiler


def main():
    parser = report.arguments(__doc__.split("\n")[0])
    parser.add_argument("--trials", type=report.count, default=3, help="of each fault (default: 3; 1 with --quick)")
    parser.add_argument("--processes", type=report.count, default=2, help="of a job (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", default="", help="faults whose names contain one of these words, split by commas")
    parser.add_argument("--keep", default="", help="a new folder for all jobs and their logs, which is kept")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)  # Orbax warns of every checkpoint read here
    asked = [word.strip() for word in args.only.split(",") if word.strip()]
    names = [n for n in FAULTS if (any(w in n for w in asked) if asked else FAULTS[n].quick or not args.quick)]
    if not names:
        parser.error(f"--only={args.only} is in the name of no fault; choose from: {', '.join(FAULTS)}")
    try:
        if args.keep:
            Path(args.keep).mkdir(parents=True)
    except FileExistsError:
        parser.error(f"--keep={args.keep} is there already; name a new folder")
    except OSError as error:
        parser.error(f"--keep={args.keep} cannot be made ({error.strerror}); name another folder")
    trials, results, whole = 1 if args.quick else args.trials, [], False
    with (
        tempfile.TemporaryDirectory(prefix="longhaul-faults-") as temporary,
        contextlib.suppress(KeyboardInterrupt),
        ended(),
    ):
        folder = Path(args.keep or temporary).resolve()
        matrix = Matrix(folder, args.processes)
        for name in names:
            if name in COMPILED and not matrix.preload:
                print(f"{name}: left out, there is no C compiler", file=sys.stderr)
            else:
                results.append(tried(matrix, name, trials, args.seed))
        whole = True
    report.show(results, args, {"steps": STEPS, "processes": args.processes, "trials": trials, "seed": args.seed})
    if not whole:
        print(f"cut short: {len(results)} of {len(names)} faults were tried", file=sys.stderr)
        return 130
    return 0 if all(result.value == trials for result in results) else 1


def tried(matrix: Matrix, name: str, trials: int, seed: int) -> report.Result:
    """The row of a fault."""
    good, seen = 0, Counter()
    for number in range(trials):
        ended, wrong = matrix.trial(name, number, seed)
        good += not wrong
        seen.update(" ".join(map(str, codes)) for codes in ended[:1])
        print(f"{name}, trial {number}: {wrong or 'the same bits'}; exit codes {ended}", file=sys.stderr, flush=True)
    ends = "; ".join(f"{codes} ({count})" if count > 1 else codes for codes, count in seen.most_common())
    return report.Result(name, good, f"of {trials} with the same bits; first ended with {ends}", target=trials)


if __name__ == "__main__":
    sys.exit(main())
