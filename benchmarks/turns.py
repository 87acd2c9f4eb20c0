"""Compare programs in processes of their own that take turns: while one runs, the others are stopped.

In one process the heaps of two libraries interfere, and the waiting one's threads spin on the running one's cores. A
program is a function `module:function` that returns a dictionary of functions; each takes a number of repetitions,
waits for its result, and may return a number. Its process is stopped (SIGSTOP) between turns.

The C library's treatment of freed memory is a third of a small step's time, so both sides get the same (`--memory`):

    kept       ours as `pretrain train` (pretrain/distributed/init.py), peers through GLIBC_TUNABLES
    returned   glibc's default on both sides
"""

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
    """Parser of a benchmark whose programs take turns."""
    parser = report.arguments(description)
    parser.add_argument("--memory", choices=MEMORY, default="kept", help="freed memory, on both sides (default: kept)")
    return parser


@dataclasses.dataclass(frozen=True)
class Turn:
    """Mean cost of one repetition in a turn, and the number that the function returned."""

    seconds: float
    processor: float  # seconds of all cores with the kernel's work; comparable on a busy machine too
    faults: float  # page faults
    value: float | None


class Program:
    """A function `module:function`, called with `options` in a process of its own."""

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
        """Repeat function `name`, after one untimed call that warms caches again."""
        self.process.send_signal(signal.SIGCONT)
        print(json.dumps([name, times]), file=self.process.stdin, flush=True)
        turn = Turn(**self._answer())
        self.process.send_signal(signal.SIGSTOP)
        return turn

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:  # the process printed why
            sys.exit(self.process.wait())
        return json.loads(line)

    def end(self) -> None:
        """End the process, which frees its memory."""
        self.process.kill()
        self.process.wait()


def take_turns(programs: dict[str, Program], name: str, rounds: int, times: int, warmup: int = 1):
    """Turns of each program, in the order A B C, A B C: a drift of the machine meets all of them."""
    for program in programs.values():
        program.turn(name, warmup)
    turns = {who: [] for who in programs}
    for _ in range(rounds):
        for who, program in programs.items():
            turns[who].append(program.turn(name, times))
    return turns


def compare(turns: dict[str, list[Turn]], ours: str, unit: str, units: float, target: float) -> list[report.Result]:
    """Results: `units` per second of each program, ours against the fastest peer, and costs of an update."""
    seconds = {who: [turn.seconds for turn in own] for who, own in turns.items()}
    processor = {who: [turn.processor for turn in own] for who, own in turns.items()}
    best = min((who for who in turns if who != ours), key=lambda who: statistics.median(seconds[who]))
    value = units / statistics.median(seconds[ours])
    rows = [report.compare(ours, seconds[ours], seconds[best], best, value=value, unit=unit, target=target)]
    rows += [report.Result(who, units / statistics.median(s), unit) for who, s in seconds.items() if who != ours]
    for who, own in turns.items():
        row = report.Result(f"{who}, an update", statistics.median(processor[who]) * 1e3, "ms of processor time")
        if who == ours:
            row.against, (row.ratio, row.spread) = best, report.ratio(processor[ours], processor[best])
        faults = statistics.median(turn.faults for turn in own)
        rows += [row, report.Result(f"{who}, an update", faults, "page faults")]
    return rows


def versions(programs: dict[str, Program]) -> dict[str, str]:
    """Versions of the packages that the programs loaded."""
    return functools.reduce(dict.__or__, (program.versions for program in programs.values()))


def serve(target: str, options: dict) -> None:
    """Serve a `Program`: run the functions named on standard input, line by line."""
    die_with_parent()  # a stopped process notices nothing else
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print there
    module, _, function = target.partition(":")
    functions = getattr(importlib.import_module(module), function)(**options)
    print(json.dumps(report.versions()), file=answers, flush=True)
    for line in sys.stdin:
        name, times = json.loads(line)
        functions[name](1)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        value = functions[name](times)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        turn = Turn(seconds / times, processor / times, (after.ru_minflt - before.ru_minflt) / times, value)
        print(json.dumps(dataclasses.asdict(turn)), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
