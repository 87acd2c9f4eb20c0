"""The training loop: batch, step, log, evaluate, save, stop."""

import contextlib
import dataclasses
import socket
from collections.abc import Callable

import jax

from pretrain.checkpoints.manager import CheckpointManager
from pretrain.checkpoints.restore import CONFIG, TOKENS
from pretrain.distributed.consensus import library_versions, on_host0
from pretrain.distributed.init import process_age
from pretrain.distributed.shutdown import PREEMPTED, shutdown
from pretrain.errors import UserError
from pretrain.evaluation.evaluation import VALIDATION, format_measure
from pretrain.losses import compute_terms
from pretrain.metrics.goodput import Goodput
from pretrain.metrics.progress import Ledger, Progress, open_null
from pretrain.metrics.wandb_run import WandbRun
from pretrain.metrics.writer import MetricWriter
from pretrain.training.evaluator import Evaluator, build_evaluators
from pretrain.training.replica_check import ReplicaCheck
from pretrain.training.startup import RunParts, report_measure, restore_or_init
from pretrain.training.throughput import Profiler, Throughput, peak_memory


class RewindError(Exception):
    """The loss or gradient of the batch at `position` in the data was not finite."""

    def __init__(self, position: int):
        super().__init__(f"bad step at data position {position}")
        self.position = position


@dataclasses.dataclass(frozen=True)
class Hook:
    """A callable that runs after every `every` steps; 0 means never."""

    every: int
    run: Callable[[], object]

    def __call__(self, step: int) -> None:
        if self.every > 0 and step % self.every == 0:
            self.run()


class Loop:
    """The state of one run, and the hooks around its step."""

    def __init__(self, run: RunParts, checkpoints: CheckpointManager, ledger: Ledger, report, weights=None):
        config = run.config
        self.config, self.spec, self.parts = config, run.spec, run
        self.checkpoints, self.ledger, self.weights = checkpoints, ledger, weights
        self.evaluators = build_evaluators(run, report)
        self.selecting = next(one for one in self.evaluators if one.selects)  # its losses rank the checkpoints
        self.replica_check = ReplicaCheck(run.spec, config.train.compare_every > 0)
        self.steps = config.train.steps
        self.restore(report)
        # After `restore`: a start that is refused leaves no row.
        path = checkpoints.workdir.goodput if jax.process_index() == 0 else None
        about = {"host": socket.gethostname(), "processes": jax.process_count(), "devices": jax.device_count()}
        about |= {"device": jax.devices()[0].device_kind, "versions": library_versions()}
        self.goodput = Goodput(path, process_age(), **about)
        self.write_goodput()
        self.first_step = self.step
        self.new_measure = report_measure(run, checkpoints, self.step, report)
        self.writer = self.open_writer()
        logs_online = config.log.wandb and jax.process_index() == 0
        self.wandb = WandbRun(config, str(checkpoints.workdir.path)) if logs_online else None
        output = open_null() if jax.process_index() else None
        self.progress = Progress(self.steps, self.step, config.name, output, config.log.seconds)
        self.throughput = Throughput(run.spec, config.data.length, config.log.peak_flops, ledger)
        self.profiler = Profiler(config.log.profile, checkpoints.workdir.profile, self.progress.note)
        self.batches = run.batches(self.position)
        # (step, position, metrics, seconds) of the last step, read once the next is queued.
        self.pending = None
        self.compiled_rows = 0  # rows of the batches that the step was last compiled for
        self.rewinding = config.train.on_bad_step == "rewind"
        self.stopping = False
        self.last_good_step = self.step - self.bad_in_row  # the last step with a finite loss and gradient
        self.rewinds = self.furthest_step = 0  # rewinds since the run last passed its furthest step
        self.hooks = (
            Hook(config.train.compare_every, self.compare_replicas),
            Hook(1, self.evaluate_due),
            Hook(config.checkpoint.every, self.save),
        )

    def run(self) -> int:
        """Train until `config.train.steps`; return the exit code. Errors: RewindError after a bad step."""
        if not self.finish_evaluation():
            return self.interrupt()
        while self.step < self.steps:
            # At the top, so that it also ends a run after an interrupted evaluation or a rewind.
            if self.should_stop():
                return self.interrupt()
            with self.ledger.spend("data"):
                batch = next(self.batches)
            self.profiler.before(self.step + 1)
            metrics = self.train_step(batch)
            # They differ after a rewind, which skips data but repeats steps.
            self.step, self.position = self.step + 1, self.position + 1
            self.profiler.after(self.step, metrics)
            self.log(metrics)
            if self.step < self.steps:  # `finish` evaluates and saves after the last step
                for hook in self.hooks:
                    hook(self.step)
        return self.finish()

    def should_stop(self) -> bool:
        """Whether a stop was requested; once true it stays true, in all processes."""
        self.stopping = self.stopping or shutdown.reached()
        return self.stopping

    def train_step(self, batch):
        """Run a step and return its metrics. The first one of each batch size compiles, and is waited for."""
        rows = self.parts.sizes.size(self.position)
        compiled, self.compiled_rows = self.compiled_rows == rows, rows
        if compiled and self.ledger.steady:
            with self.ledger.spend("step"):
                self.state, metrics = self.spec.train_step(self.state, batch)
            return metrics
        with self.ledger.spend("compile"), self.progress.waiting("compiling; a large model takes minutes"):
            self.state, metrics = jax.block_until_ready(self.spec.train_step(self.state, batch))
        shutdown.hold()  # from now on a signal waits for the end of the step and saves
        self.ledger.steady = True
        return metrics

    def log(self, metrics) -> None:
        """Queue a step's metrics and read those of the step before, so that the device never waits for the host."""
        self.ledger.update = self.step
        # On a CPU the dispatch runs the step, so its time ends here and not when its metrics are read.
        seconds = self.ledger.seconds() if metrics["grad_norm"].is_ready() else None
        # One step is queued at most, so metrics are never more than one step old.
        previous, self.pending = self.pending, (self.step, self.position, metrics, seconds)
        with self.ledger.spend("step"):
            if previous:
                self.record(*previous)

    def read_metrics(self) -> None:
        """Wait for the queued step and log it, so that its time is not charged to what follows."""
        pending, self.pending = self.pending, None
        with self.ledger.spend("step"):
            jax.block_until_ready(self.state)
            if pending:
                self.record(*pending)

    def record(self, step: int, position: int, metrics, seconds: dict | None) -> None:
        """Log a step's metrics. Errors: RewindError, or UserError after too many bad steps."""
        # float() waits for the device, which is busy with the next step meanwhile.
        values = jax.tree.map(float, metrics)
        self.throughput.count(values["read"], seconds)
        self.tokens += int(values["read"])
        self.bad_in_row = int(values["bad_in_row"])
        self.last_good_step = max(self.last_good_step, step - self.bad_in_row)
        if self.bad_in_row:
            skipped = f"step skipped ({self.bad_in_row} in a row, {int(values['bad_total'])} in total)"
            action = "rewinding" if self.rewinding else skipped
            self.progress.note(f"step {step}: loss or gradient not finite at data position {position - 1}; {action}")
        if step % self.config.log.every == 0 or step == self.steps:
            row = compute_terms(self.spec.objective, values["sums"], values["counts"])
            row |= {name: values[name] for name in ("learning_rate", "grad_norm", "bad_total")}
            row |= {"tokens_seen": self.tokens, "seconds": self.goodput.elapsed()}
            row |= self.throughput.read() | peak_memory()
            self.write("train", step, row)
            with self.ledger.spend("save"):
                self.checkpoints.check()
            self.goodput.add(step, self.ledger.seconds(), self.checkpoints.newest, now=False)
            self.progress.update(step, row)
        # After the row is written: rewinding cuts it off again, and readers see why.
        if self.bad_in_row and self.rewinding:
            raise RewindError(position - 1)
        if self.bad_in_row >= self.config.train.max_bad_steps:
            self.read_metrics()  # the next step is queued, and counts too if it is bad
            self.save(wait=True)
            self.check_bad_steps(self.bad_in_row, position - 1)

    def rewind(self, position: int) -> None:
        """Restore the newest checkpoint and skip the batch at `position`. Errors: UserError after too many rewinds."""
        self.batches.close()
        # A run that passes its furthest step has made progress: the count restarts.
        self.rewinds = self.rewinds + 1 if self.step <= self.furthest_step else 1
        self.furthest_step = max(self.furthest_step, self.step)
        self.write_goodput()
        with self.ledger.spend("save"):
            self.checkpoints.wait()
        # Only after the newest checkpoint is on disk: a later start continues from it.
        self.check_bad_steps(self.rewinds, position)
        self.restore(self.progress.note)
        self.write_goodput()
        for evaluator in self.evaluators:
            evaluator.forget()
        self.pending = None
        if self.position != position + 1:  # the recurrent state belongs to other text
            empty = self.spec.init_recurrent_state(self.spec.model, self.config.train.batch_size)
            self.state = self.state.replace(carried=empty)
        self.position = position + 1
        # Opened again, the files lose the rows of the steps that are repeated.
        self.writer.close()
        self.writer = self.open_writer()
        self.progress.note(f"rewound to step {self.step}, continuing at data position {self.position}")
        self.batches = self.parts.batches(self.position)

    def check_bad_steps(self, count: int, position: int) -> None:
        """Raise UserError after too many bad steps, the last of them at `position` in the data."""
        if count < self.config.train.max_bad_steps:
            return
        last_good = self.checkpoints.last_good(self.last_good_step)
        start = f", or start from {self.checkpoints.workdir.path}@{last_good}" if last_good is not None else ""
        raise UserError(
            f"config.train.max_bad_steps={self.config.train.max_bad_steps}: {count} steps were not finite, the last at "
            f"data position {position}. Look at that data, lower config.schedule.peak{start}."
        )

    def compare_replicas(self) -> None:
        self.read_metrics()
        self.replica_check.compare(self.state, self.step)

    def evaluate_due(self, last: bool = False) -> bool:
        """Run the evaluations that belong after this step and have not run; False if a stop was requested meanwhile."""
        due = (one for one in self.evaluators if one.is_due(self.step, last) and one.step != self.step)
        return all(map(self.evaluate, due))

    def evaluate(self, evaluator: Evaluator) -> bool:
        """Score a split; False if a stop was requested meanwhile."""
        self.read_metrics()
        category = "evaluate" if evaluator.name == VALIDATION else f"evaluate {evaluator.name}"
        with self.ledger.spend(category):
            scores = evaluator.score(self.state.params, self.step, stop=self.should_stop)
        if scores is None:
            return False
        shown, row = scores
        self.write(evaluator.name, self.step, row)
        measures = ", ".join(format_measure(*item) for item in shown.items())
        self.progress.note(f"step {self.step}: {evaluator.name} {measures} ({evaluator.scope})")
        return True

    def save(self, wait: bool = False) -> None:
        """Save a checkpoint of the current step, in the background unless `wait`."""
        self.compare_replicas()  # a corrupt state must not become a checkpoint
        self.write_goodput()
        with self.ledger.spend("save"):
            state = self.spec.to_checkpoint(self.state)
            origin = self.parts.origin | {CONFIG: self.config.to_dict(), TOKENS: self.tokens}
            metrics = self.selecting.checkpoint_metrics(self.step)
            # Metrics up to this step are on disk before the checkpoint, so a killed run lacks none.
            self.writer.flush()
            self.checkpoints.save(self.step, state, self.position, metrics, origin, int(state.bad_in_row))
            if wait:
                self.checkpoints.wait()

    def finish_evaluation(self) -> bool:
        """Evaluate a restored checkpoint whose evaluation was interrupted; False if it is interrupted again."""
        last = self.step >= self.steps
        if not self.step or (last and self.new_measure):
            return True
        # An earlier start was stopped between this checkpoint's step and the end of its evaluations.
        loss = self.checkpoints.loss(self.step, self.selecting.measure)
        if loss is not None:
            self.selecting.set_loss(self.step, loss)
        # Process 0 alone has the files, and an evaluation is collective: all processes must skip the same ones.
        scored = on_host0(lambda: [one.name for one in self.evaluators if self.writer.has(one.name, self.step)])
        for evaluator in self.evaluators:
            if not evaluator.selects and evaluator.name in scored:
                evaluator.set_loss(self.step)
        if not self.evaluate_due(last):
            return False
        metrics = self.selecting.checkpoint_metrics(self.step)
        if loss is None and metrics:
            # A run that makes no step deletes no checkpoint.
            self.checkpoints.add_metrics(self.step, metrics, prune=not last)
        return True

    def interrupt(self) -> int:
        """Save and return the exit code of a preempted run."""
        self.save(wait=True)
        self.progress.note(f"interrupted: saved checkpoint {self.step}; start the same command again to continue")
        return PREEMPTED

    def finish(self) -> int:
        """Evaluate and save after the last step."""
        self.read_metrics()
        self.check_bad_steps(self.bad_in_row, self.position - 1)  # an earlier start may have ended here, too
        if self.step != self.first_step and not self.evaluate_due(last=True):
            return self.interrupt()
        self.save(wait=True)
        own = f" ({self.step - self.first_step} in this start)" if self.first_step else ""
        self.progress.note(f"done: {self.step} steps{own} in {self.ledger.summary()}")
        return 0

    def restore(self, report) -> None:
        """Set state, step and data position: from the newest whole checkpoint, or the beginning."""
        restored = restore_or_init(self.parts, self.checkpoints, self.weights, self.ledger, report)
        self.state, self.step, self.position, self.tokens = restored
        self.ledger.update = self.step
        # Under pmap there is a copy for each device.
        self.bad_in_row = int(self.state.bad_in_row.addressable_data(0).max())

    def write(self, split: str, step: int, row: dict) -> None:
        """Write a row of metrics wherever the config says."""
        self.writer.write(split, step, row)
        if self.wandb:
            self.wandb.write(split, step, row)

    def open_writer(self) -> MetricWriter:
        """Metric files cut back to the current step; process 0 alone writes them."""
        enabled = [self.config.log[name] and jax.process_index() == 0 for name in ("tensorboard", "csv", "jsonl")]
        return MetricWriter(str(self.checkpoints.workdir.metrics), *enabled, self.step, [*self.config.evaluations])

    def write_goodput(self) -> None:
        """Write the time of each category and the newest checkpoint to goodput.jsonl."""
        self.goodput.add(self.step, self.ledger.seconds(), self.checkpoints.newest)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each is closed even if another fails, the last first
            closes = (self.progress.close, self.writer.close, self.profiler.close, self.goodput.close)
            closes = (self.wandb.close, *closes) if self.wandb else closes
            for close in (*closes, self.write_goodput, self.batches.close):
                stack.callback(close)
