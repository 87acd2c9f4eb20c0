"""Cost of the training loop on top of its steps: reading data, its own Python, and saving.

    python -m benchmarks.loop [--quick] [--format=json]

Real data against one fixed batch, in alternating blocks of updates of the quickstart recipe; the loop's Python per
update, with a step that does nothing; and how long a save blocks the loop, in steps.
"""

import os
import statistics
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from benchmarks import report
from pretrain import config as configs
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.distributed.init import keep_freed_memory
from pretrain.metrics.progress import Ledger
from pretrain.training.loop import Loop
from pretrain.training.startup import build_run

TURNS = 300  # of the loop around a step that does nothing


def silent(message: str) -> None:
    """Discard a message."""


def compare_data(run, rounds: int, updates: int):
    """Seconds of blocks of updates on real data and on one batch; and the last state."""
    state = run.spec.init(0, run.config.train.batch_size)
    feed = run.batches(0)
    fixed = next(feed)

    def block(real: bool):
        nonlocal state
        for _ in range(updates):
            state, metrics = run.spec.train_step(state, next(feed) if real else fixed)
        jax.block_until_ready(metrics)

    times = report.interleave({"real": lambda: block(True), "fixed": lambda: block(False)}, rounds)
    feed.close()
    return times, state


class InstantSpec:
    """A spec whose train step returns at once."""

    def __init__(self, run):
        self.spec = run.spec
        state = self.spec.init(0, run.config.train.batch_size)
        self.state, self.metrics = self.spec.train_step(state, next(run.batches(0)))
        jax.block_until_ready(self.metrics)

    def __getattr__(self, name):
        return getattr(self.spec, name)

    def put(self, batch, size):
        return None

    def train_step(self, state, batch):
        return state, self.metrics


def python_per_update(run, workdir: str) -> float:
    """Seconds of the loop's own Python per update."""
    config = run.config.copy_and_resolve_references().unlock()
    config.train.steps, config.evaluate.every, config.checkpoint.every = TURNS, 0, 10 * TURNS
    checkpoints = CheckpointManager(workdir, config.checkpoint)
    loop = Loop(type(run)(config, InstantSpec(run), run.corpus), checkpoints, Ledger(), silent)
    loop.finish = lambda: 0
    elapsed = report.seconds(loop.run)
    checkpoints.close()
    return elapsed / TURNS


def save_seconds(run, state, workdir: str, rounds: int) -> list[float]:
    """Seconds that each of several saves blocks the loop."""
    checkpoints, seconds = CheckpointManager(workdir, run.config.checkpoint), []
    for step in range(1, rounds + 1):
        jax.block_until_ready(state)
        seconds.append(report.seconds(lambda step=step: checkpoints.save(step, run.spec.to_checkpoint(state), step)))
        checkpoints.wait()
    checkpoints.close()
    return seconds


def main():
    args = report.arguments(__doc__).parse_args()
    keep_freed_memory()
    rounds, updates = (5, 3) if args.quick else (9, 10)
    overrides = [("mesh.data", str(jax.device_count())), ("log.tensorboard", "false")]
    config = configs.load("configs/quickstart.py", overrides)
    with tempfile.TemporaryDirectory() as folder:
        run = build_run(config, folder, silent)
        times, state = compare_data(run, rounds, updates)
        saves = save_seconds(run, state, f"{folder}/saves", rounds)
        python = python_per_update(run, f"{folder}/turn")
    step = statistics.median(times["fixed"]) / updates
    blocked = [seconds / step for seconds in saves]
    # Inverted: how many times as long, not as fast.
    pair = times["fixed"], times["real"]
    value = statistics.median(times["real"]) / updates * 1e3
    spread = min(blocked), max(blocked)
    rows = [
        report.compare("step on real data", *pair, "a fixed batch", unit="ms", value=value, target=1.03),
        report.Result("the loop's own Python, a turn", python * 1e3, "ms", target=1.0),
        report.Result("a save holds the loop up", statistics.median(blocked), "steps", target=2.0, spread=spread),
    ]
    report.show(rows, args, config.to_dict())


if __name__ == "__main__":
    main()
