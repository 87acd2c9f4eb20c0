"""What watching over a run costs, as a share of its updates: the watchdog, comparing devices, the ledger of time.

    python -m benchmarks.watch [--quick] [--format=json]

Updates of the quickstart recipe on two virtual devices, and beside them the processor time of what is done to survive:
a look of the watchdog, twice a second; a comparison of what devices hold alike, every `train.compare_every` updates; a
row of the ledger of time, every ten seconds; and the places that an update passes, which the watchdog reads. Where
several processes make a run, each also asks process 0 twice a second how the others are: what that takes of a
processor in each of four processes that wait, with what JAX itself does there.
"""

import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax

from benchmarks import report, several
from benchmarks.loop import silent
from pretrain import config as configs
from pretrain.distributed import heartbeat
from pretrain.distributed.heartbeat import Watchdog
from pretrain.distributed.init import keep_freed_memory, start
from pretrain.metrics import goodput
from pretrain.metrics.goodput import Goodput
from pretrain.metrics.progress import Ledger
from pretrain.training.prefetch import Feed
from pretrain.training.replica_check import ReplicaCheck
from pretrain.training.startup import build_run

PROCESSES = 4


def updates(run, rounds: int):
    """(seconds of an update, the state after the last)."""
    state = run.spec.init(0, run.config.train.batch_size)
    feed, seconds = Feed(run, 0, silent), []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        state, metrics = run.spec.train_step(state, next(feed))
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - began)
    feed.close()
    return statistics.median(seconds[1:]), state


def compared(run, state, rounds: int) -> float:
    """Seconds of a comparison."""
    replicas, seconds = ReplicaCheck(run.spec, enabled=True), []
    for step in range(rounds + 1):
        seconds.append(report.seconds(lambda step=step: replicas.compare(state, step + 1)))
    return statistics.median(seconds[1:])


def looked(looks: int) -> float:
    """Seconds of processor time of a look of the watchdog."""
    ledger, before = Ledger(), heartbeat.LOOK
    heartbeat.LOOK = 0.001
    began = time.process_time()
    dog = Watchdog(600, ledger)
    time.sleep(looks * heartbeat.LOOK)
    dog.close()
    heartbeat.LOOK = before
    return (time.process_time() - began) / looks


def part(path: str, seconds: float) -> None:
    """One of several processes: the share of a processor that it takes while it waits and is watched over."""
    start()
    with contextlib.closing(Watchdog(600, Ledger())):
        time.sleep(2)  # until all have met
        began, used = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        found = (time.process_time() - used) / (time.perf_counter() - began)
    several.tell(path, {"share": found})


def written(folder: Path, rows: int) -> float:
    """Seconds of a row of the ledger of time."""
    ledger, row = Ledger(), Goodput(folder / "rows.jsonl", 0.0)
    return report.seconds(lambda: [row.add(n, ledger.seconds()) for n in range(rows)]) / rows


def passed(turns: int) -> float:
    """Seconds that an update spends on telling where it is: two blocks of the ledger, counted."""
    ledger = Ledger()

    def turn():
        with ledger.spend("data"):
            pass
        with ledger.spend("step"):
            pass

    return report.seconds(lambda: [turn() for _ in range(turns)]) / turns


def main():
    args = several.arguments(__doc__.split("\n")[0], part)
    keep_freed_memory()
    rounds = 5 if args.quick else 30
    config = configs.load(
        "configs/quickstart.py", [("mesh.data", str(jax.device_count())), ("log.tensorboard", "false")]
    )
    with tempfile.TemporaryDirectory() as folder:
        run = build_run(config, folder, silent)
        step, state = updates(run, rounds)
        compare, look = compared(run, state, rounds), looked(1000)
        row, place = written(Path(folder), 1000), passed(10_000)
        together = several.parts("watch", Path(folder) / "parts", PROCESSES, 1, {"seconds": 5 if args.quick else 30})
    every = config.train.compare_every
    shares = {
        f"comparing, every {every} updates": compare / every / step,
        "a look of the watchdog, twice a second": look / heartbeat.LOOK,
        "a row of the ledger, every ten seconds": row / goodput.EVERY,
        "places of an update": place / step,
    }
    rows = [report.Result("an update", step * 1e3, "ms"), report.Result("a comparison", compare * 1e3, "ms")]
    rows += [report.Result(name, 100 * share, "% of an update") for name, share in shares.items()]
    rows.append(report.Result("all together", 100 * sum(shares.values()), "% of an update", target=1.0))
    first, *others = (100 * one["share"] for one in together)
    rows.append(report.Result(f"a waiting process 0 of {PROCESSES}, which all ask", first, "% of a processor"))
    rows.append(report.Result("each of the others", statistics.mean(others), "% of a processor"))
    report.show(rows, args, config.to_dict())


if __name__ == "__main__":
    main()
