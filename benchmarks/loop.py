"""What the training loop adds to its steps: reading data, its own Python, and saving.

    python -m benchmarks.loop [--quick] [--format=json]

Real data against one fixed batch, in alternating blocks of updates of the quickstart recipe; the Python of one
turn of the loop, with a step that does nothing; and how long a save holds the loop up, in steps.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from benchmarks import report
from pretrain import config as configs
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.distributed.init import keep_freed_memory
from pretrain.metrics.progress import Ledger
from pretrain.training.loop import Loop
from pretrain.training.prefetch import Feed
from pretrain.training.startup import build_run


def silent(message: str) -> None:
    """Hears what a run reports."""


def blocks(run, rounds: int, updates: int):
    """Seconds of blocks of updates, on real data and on one batch, in turn; and the last state."""
    config, spec = run.config, run.spec
    state = spec.init(0, config.train.batch_size)
    feed = Feed(run, 0, silent)
    fixed = next(feed)
    times = {"real data": [], "fixed batch": []}
    for round in range(rounds + 1):
        for name, seconds in times.items():
            began = time.perf_counter()
            for _ in range(updates):
                state, metrics = spec.train_step(state, next(feed) if name == "real data" else fixed)
            jax.block_until_ready(metrics)
            if round:  # the first compiles
                seconds.append(time.perf_counter() - began)
    feed.close()
    return times, state


def turn(run, workdir: str, updates: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds, by a clock, of one turn of the loop around a step that takes no time."""

    class Instant:
        """The spec, without its step."""

        def __init__(self, spec):
            self.spec = spec
            state = spec.init(0, run.config.train.batch_size)
            batch = next(Feed(run, 0, silent))
            self.state, self.metrics = spec.train_step(state, batch)
            jax.block_until_ready(self.metrics)

        def __getattr__(self, name):
            return getattr(self.spec, name)

        def put(self, batch, size):
            return None

        def train_step(self, state, batch):
            return state, self.metrics

    config = run.config.copy_and_resolve_references().unlock()
    config.train.steps = updates
    config.evaluate.every = 0
    config.checkpoint.every = 10 * updates
    instant = type(run)(config, Instant(run.spec), run.corpus)
    checkpoints = CheckpointManager(workdir, config.checkpoint)
    loop = Loop(instant, checkpoints, Ledger(), workdir, silent)
    loop.finish = lambda: 0
    began = clock()
    loop.run()
    elapsed = clock() - began
    checkpoints.close()
    return elapsed / updates


def stall(run, state, workdir: str, rounds: int) -> list[float]:
    """Seconds that the loop waits for each of some saves, the one before being still under way or not."""
    checkpoints = CheckpointManager(workdir, run.config.checkpoint)
    seconds = []
    for step in range(1, rounds + 1):
        jax.block_until_ready(state)
        seconds.append(report.seconds(lambda step=step: checkpoints.save(step, run.spec.to_checkpoint(state), step)))
        checkpoints.wait()
    checkpoints.close()
    return seconds


def main():
    args = report.arguments(__doc__.split("\n")[0]).parse_args()
    keep_freed_memory()
    rounds, updates = (5, 3) if args.quick else (9, 10)
    overrides = [("mesh.data", str(jax.device_count())), ("log.tensorboard", "false")]
    config = configs.load("configs/quickstart.py", overrides)
    with tempfile.TemporaryDirectory() as folder:
        run = build_run(config, folder, silent)
        times, state = blocks(run, rounds, updates)
        extra, spread = report.ratio(times["fixed batch"], times["real data"])
        step = statistics.median(times["fixed batch"]) / updates
        saves = stall(run, state, f"{folder}/saves", rounds)
        own = turn(run, f"{folder}/turn", 300)
    shares = (min(saves) / step, max(saves) / step)
    rows = [
        report.Result("step on real data", step * extra * 1e3, "ms", "a fixed batch", extra, 1.03, spread),
        report.Result("the loop's own Python, a turn", own * 1e3, "ms", target=1.0),
        report.Result("a save holds the loop up", statistics.median(saves) / step, "steps", target=2.0, spread=shares),
    ]
    report.show(rows, args, config.to_dict())


if __name__ == "__main__":
    main()
