"""Programs to be compared, each in a process of its own: they take turns, and while one runs the others are stopped.

In one process the heaps of two libraries interfere, and the threads of the one that waits spin on the cores of the
one that runs. Here a program is a function named `module:function` that returns what it can do, by name: functions
that take a number of times, do it so often, wait for it, and may return a number. Its process is stopped (SIGSTOP) but
for its turns.

How the C library treats freed memory decides a third of a small step's time, so both sides are given the same:

    kept       ours as `pretrain train` does (pretrain/distributed/malloc.py), the peers through GLIBC_TUNABLES
    returned   both as glibc does by itself
"""

import argparse
import atexit
import dataclasses
import functools
import importlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time

from benchmarks import report
from launch.supervisor import die_with_parent

TUNABLES = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=17179869184:glibc.malloc.hugetlb=1"
MEMORY = {
    "kept": {"ours": {"LONGHAUL_KEEP_MEMORY": "1"}, "peer": {"GLIBC_TUNABLES": TUNABLES}},
    "returned": {"ours": {"LONGHAUL_KEEP_MEMORY": "0"}, "peer": {}},
}


def arguments(description: str):
    """The options of a benchmark whose programs take turns."""
    parser = report.arguments(description)
    parser.add_argument(
        "--memory", choices=MEMORY, default="kept", help="what becomes of freed memory, on both sides (default: kept)"
    )
    return parser


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one time cost, on average over a turn, and the number that the function returned."""

    seconds: float
    processor: float  # seconds of all cores, the kernel's work included: what a busy machine leaves comparable
    faults: float  # pages that the kernel had to give
    value: float | None


class Program:
    """A function `module:function` in a process of its own, called with `options`."""

    def __init__(self, target: str, side: str, memory: str, **options):
        environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.turns", target, json.dumps(options)],
            env=environment | {"JAX_PLATFORMS": "cpu"} | MEMORY[memory][side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.end)
        self.versions = self._answer()
        self.process.send_signal(signal.SIGSTOP)

    def turn(self, name: str, times: int = 1) -> Turn:
        """Does `name` so many times, and once before, uncounted, to be warm again."""
        self.process.send_signal(signal.SIGCONT)
        print(json.dumps([name, times]), file=self.process.stdin, flush=True)
        turn = Turn(**self._answer())
        self.process.send_signal(signal.SIGSTOP)
        return turn

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:  # it has said why
            sys.exit(self.process.wait())
        return json.loads(line)

    def end(self) -> None:
        """Ends its process, and gives its memory back."""
        self.process.kill()
        self.process.wait()


def in_turns(programs: dict[str, Program], name: str, rounds: int, times: int, warmup: int = 1):
    """The turns of each program, A B C, A B C, ..., so that a drift of the machine meets them all."""
    for program in programs.values():
        program.turn(name, warmup)
    turns = {who: [] for who in programs}
    for _ in range(rounds):
        for who, program in programs.items():
            turns[who].append(program.turn(name, times))
    return turns


def compared(turns: dict[str, list[Turn]], ours: str, unit: str, units: float, target: float) -> list[report.Result]:
    """Rows of `units` a second for each program, ours against the fastest peer, and of what an update costs."""
    seconds = {who: [turn.seconds for turn in taken] for who, taken in turns.items()}
    processor = {who: [turn.processor for turn in taken] for who, taken in turns.items()}
    best = min((who for who in turns if who != ours), key=lambda who: statistics.median(seconds[who]))
    median, spread = report.ratio(seconds[ours], seconds[best])
    rows = [report.Result(ours, units / statistics.median(seconds[ours]), unit, best, median, target, spread)]
    rows += [report.Result(who, units / statistics.median(s), unit) for who, s in seconds.items() if who != ours]
    for who, taken in turns.items():
        row = report.Result(f"{who}, an update", statistics.median(processor[who]) * 1e3, "ms of processor time")
        if who == ours:
            row.against, (row.ratio, row.spread) = best, report.ratio(processor[ours], processor[best])
        rows.append(row)
        faults = statistics.median(turn.faults for turn in taken)
        rows.append(report.Result(f"{who}, an update", faults, "page faults"))
    return rows


def versions(programs: dict[str, Program]) -> dict[str, str]:
    """Versions of what the programs have loaded."""
    return functools.reduce(dict.__or__, (program.versions for program in programs.values()))


def serve(target: str, options: dict) -> None:
    """The other end of a `Program`: does what it is asked to, line by line, until nobody asks."""
    die_with_parent()  # a stopped process notices nothing else
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
    module, _, function = target.partition(":")
    can = getattr(importlib.import_module(module), function)(**options)
    print(json.dumps(report.versions()), file=answers, flush=True)
    for line in sys.stdin:
        name, times = json.loads(line)
        can[name](1)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        value = can[name](times)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        turn = Turn(seconds / times, processor / times, (after.ru_minflt - before.ru_minflt) / times, value)
        print(json.dumps(dataclasses.asdict(turn)), file=answers, flush=True)


if __name__ == "__main__":
    description = "One program of a benchmark whose programs take turns: such benchmarks start it themselves."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=description)
    parser.add_argument("target", help="its function, as MODULE:FUNCTION")
    parser.add_argument("options", type=json.loads, help="what the function is called with, as a JSON object")
    asked = parser.parse_args()
    serve(asked.target, asked.options)
