"""Measure and report: ratios pair by pair in one run, medians, one JSON object per line.

Each benchmark prints a table, or with `--format=json` one object per line: a `Result` with its device, versions and
config hash. `--quick` ends within a minute or two; `--out FILE` also appends the objects to a file.
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
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

PACKAGES = ("jax", "flax", "numpy")  # of a `pretrain` in another process


@dataclasses.dataclass
class Result:
    """One figure.

    ratio: how many times as good as `against`, median of pairs. spread: lowest and highest ratio, or value.
    """

    name: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None
    target: float | None = None
    spread: tuple[float, float] | None = None


def arguments(description: str) -> argparse.ArgumentParser:
    """Parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs: a minute or two, rough figures")
    parser.add_argument("--out", type=new_file, default="", help="also append the JSON lines to this file")
    return parser


def new_file(text: str) -> str:
    """A file to write, for argparse; checked before hours of measuring."""
    if text and (os.path.isdir(text) or not os.path.isdir(os.path.dirname(text) or ".")):
        raise argparse.ArgumentTypeError(f"{text} is not a file in an existing folder")
    return text


def run(main: Callable[[], int | None]) -> None:
    """Run a benchmark and exit; a user's mistake is one sentence with exit code 2."""
    try:
        sys.exit(main())
    except Exception as error:
        from pretrain.errors import USER_ERRORS

        if not isinstance(error, USER_ERRORS):
            raise
        print(error, file=sys.stderr)
        sys.exit(2)


def peers(*names: str, extra: str = "oracle"):
    """Import the libraries to compare with; exit with code 2 if one is missing."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        print(f"{error}: install the peers with pip install -e '.[{extra}]'", file=sys.stderr)
        sys.exit(2)


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one call, which must wait for its own result."""
    start = clock()
    run()
    return clock() - start


def interleave(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each run in each round, in the order A B C, A B C: a drift of the machine meets all of them."""
    for _ in range(warmup):
        for run in runs.values():
            run()
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run, clock))
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median and spread of theirs / ours, pair by pair: how many times as fast ours is."""
    pairs = [b / a for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(pairs), (min(pairs), max(pairs))


def compare(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    against: str,
    *,
    unit: str = "s",
    scale: float = 1.0,
    value: float | None = None,
    target: float | None = None,
) -> Result:
    """Result with the ratio of two interleaved runs; its value is by default the median of ours, times `scale`."""
    median, spread = ratio(ours, theirs)
    return Result(
        name, statistics.median(ours) * scale if value is None else value, unit, against, median, target, spread
    )


def show(results: Sequence[Result], args: argparse.Namespace, config: object, loaded: dict | None = None) -> None:
    """Print the results.

    config: everything the figures depend on; its hash tells runs apart. loaded: versions of the measured packages, if
    other processes loaded them.
    """
    context = {
        "device": device(),
        "versions": loaded or versions(),
        "config_hash": hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:12],
    }
    lines = [json.dumps(dataclasses.asdict(result) | context) for result in results]
    if args.out:
        with open(args.out, "a") as file:
            file.writelines(line + "\n" for line in lines)
    if args.format == "json":
        print(*lines, sep="\n", flush=True)
        return
    print(f"{context['device']}; " + ", ".join(f"{k} {v}" for k, v in context["versions"].items()))
    width = max((len(result.name) for result in results), default=0)
    for result in results:
        line = f"{result.name:<{width}}  {result.value:>14,.4g} {result.unit}"
        if result.ratio is not None:
            line += f"   {result.ratio:.3g} x {result.against}"
        if result.spread:
            line += f"   (spread {result.spread[0]:.3g} to {result.spread[1]:.3g})"
        if result.target is not None:
            line += f"   target {result.target:.3g}"
        print(line, flush=True)


def device() -> str:
    """Name of the processor or accelerator."""
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
    """Versions of Python and of the named packages, by default of the measured ones that are loaded here."""
    measured = (*PACKAGES, "torch", "transformers", "sentencepiece", "grain")
    names = names or [name for name in measured if name in sys.modules]
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}


def plot(
    file: str, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str, log: str = ""
) -> None:
    """Draw {label: (x, y)} into a file, whose name ends in .svg or .png; log: axes with a logarithmic scale."""
    (matplotlib,) = peers("matplotlib", extra="plots")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    for label, (xs, ys) in curves.items():
        axes.plot(xs, ys, marker="o", label=label)
    axes.set(xlabel=x, ylabel=y, **{f"{axis}scale": "log" for axis in log})
    axes.legend()
    figure.savefig(file, bbox_inches="tight")
