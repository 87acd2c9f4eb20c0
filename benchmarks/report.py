"""How every benchmark measures and reports: ratios pair by pair in one run, medians, one object a line.

Each script prints a table, or with `--format=json` one object per line with the keys of `Result` and the
surroundings; `--quick` ends within a minute or two; `--out FILE` appends the objects to a file as well.
"""

import argparse
import dataclasses
import hashlib
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata

PACKAGES = ("jax", "flax", "numpy")  # that `pretrain` computes with, where another process runs it


@dataclasses.dataclass
class Result:
    """One figure. `ratio` is value against peer, `target` what it should reach, `spread` its lowest and highest."""

    name: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None
    target: float | None = None
    spread: tuple[float, float] | None = None


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs: a minute or two, rough figures")
    parser.add_argument("--out", type=new_file, default="", help="also append the JSON lines to this file")
    return parser


def count(text: str) -> int:
    """The argument of an option that says how many."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def new_file(text: str) -> str:
    """The argument of an option that names a file to be written, asked for before hours are measured."""
    if text and (os.path.isdir(text) or not os.path.isdir(os.path.dirname(text) or ".")):
        raise argparse.ArgumentTypeError(f"{text} is no name of a file in a folder that is there")
    return text


def gzipped(file: str) -> bool:
    """Whether a file can be read and begins as gzip's do."""
    try:
        if not os.path.isfile(file):  # such as a pipe, which is read once
            return False
        with open(file, "rb") as begun:
            return begun.read(2) == b"\x1f\x8b"
    except OSError:
        return False


def run(main: Callable[[], int | None]) -> None:
    """Runs a benchmark and ends the program: with one sentence and exit code 2 where it reads what cannot be read."""
    try:
        sys.exit(main())
    except Exception as error:
        from pretrain.errors import USER_ERRORS

        if not isinstance(error, USER_ERRORS):
            raise
        print(error, file=sys.stderr)
        sys.exit(2)


def peers(*names: str, extra: str = "oracle"):
    """The modules of libraries to be compared with; ends the program in one sentence if one is not installed."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        print(f"the peer to compare with is missing ({error}); pip install -e '.[{extra}]'", file=sys.stderr)
        sys.exit(2)


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call, which must wait for its own result."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(runs: dict[str, Callable[[], object]], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each run in each round: A B C, A B C, ..., so that a drift of the machine meets them all."""
    for _ in range(warmup):
        for run in runs.values():
            run()
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median and spread of theirs / ours, pair by pair: how many times as fast we are."""
    pairs = [b / a for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(pairs), (min(pairs), max(pairs))


def show(results: Sequence[Result], args: argparse.Namespace, config: object, measured: dict | None = None) -> None:
    """Prints the results; `config` is whatever the figures depend on, hashed so that two runs can be told apart.

    `measured` are the versions of what was measured, where other processes than this one had it loaded.
    """
    surroundings = {
        "device": device(),
        "versions": measured or versions(),
        "config_hash": hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:12],
    }
    rows = [dataclasses.asdict(r) | surroundings for r in results]
    if args.out:
        with open(args.out, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if args.format == "json":
        for row in rows:
            print(json.dumps(row))
        return
    print(f"{surroundings['device']}; " + ", ".join(f"{k} {v}" for k, v in surroundings["versions"].items()))
    width = max((len(r.name) for r in results), default=0)
    for r in results:
        line = f"{r.name:<{width}}  {r.value:>14,.4g} {r.unit}"
        if r.ratio is not None:
            line += f"   {r.ratio:.3g} x {r.against}"
        if r.spread:
            line += f"   (spread {r.spread[0]:.3g} to {r.spread[1]:.3g})"
        if r.target is not None:
            line += f"   target {r.target:.3g}"
        print(line)
    sys.stdout.flush()


def device() -> str:
    """The processor or accelerator that the figures are of."""
    if "jax" in sys.modules:
        import jax

        if jax.default_backend() != "cpu":
            return jax.devices()[0].device_kind
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"


def versions(*names: str) -> dict[str, str]:
    """Versions of Python and of packages: those named, or what was measured as far as it is loaded here."""
    known = (*PACKAGES, "torch", "transformers", "sentencepiece", "grain")
    names = names or [name for name in known if name in sys.modules]
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}
