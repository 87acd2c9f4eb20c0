"""The loop of a run: update after update, read one late, with what is due between them."""

import contextlib
import functools
import socket
import sys

import jax

from input_pipeline.errors import DataError
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.checkpoints.restore import CONFIG
from pretrain.checkpoints.teacher import begun
from pretrain.distributed.init import process_age
from pretrain.distributed.shutdown import PREEMPTED, shutdown
from pretrain.errors import UserError
from pretrain.evaluation.evaluation import worded
from pretrain.losses import compute_terms
from pretrain.losses.distill import teacher_sets
from pretrain.metrics.goodput import Goodput
from pretrain.metrics.progress import Ledger, Progress, open_null
from pretrain.metrics.writer import MetricWriter
from pretrain.training.evaluator import Validation
from pretrain.training.prefetch import Feed
from pretrain.training.profiler import Profile
from pretrain.training.replica_check import ReplicaCheck
from pretrain.training.startup import RunParts, tell_of_holdout, tell_of_measure
from pretrain.training.throughput import Rates
from pretrain.workdir import Workdir


class Loop:
    """One run's loop, and what it carries from update to update."""

    def __init__(self, run: RunParts, checkpoints: CheckpointManager, ledger: Ledger, workdir: str, say, weights=None):
        self.config, self.spec, self.parts = run.config, run.spec, run
        self.checkpoints, self.ledger, self.weights = checkpoints, ledger, weights
        self.validation = Validation(run, say)
        self.replicas = ReplicaCheck(run.spec, self.config.train.compare_every > 0)
        self.state, self.step, self.position = self.restore(say)
        self.goodput = goodput(Workdir(workdir))  # a start that is refused leaves no row
        self.account()
        self.begun = self.step  # updates that were made before this start
        self.otherwise = self.validation.there and tell_of_measure(run, workdir, self.step, checkpoints.measures(), say)
        self.writer = self.open_writer(workdir, say)
        shown = open_null() if jax.process_index() else None
        self.progress = Progress(self.config.train.steps, self.step, self.config.name, shown)
        self.rates = Rates(run.spec, self.config, ledger)
        self.profile = Profile(self.config.log.profile, checkpoints.workdir.profile, self.progress.note)
        self.compiled = False
        self.pending = None  # what `update` says of the last one, read once the next one is on its way
        bad = self.state.bad_in_row.addressable_data(0)  # of pmap a copy for each device
        self.good = self.step - int(bad.max())  # the last update that was not bad
        self.rewinds, self.farthest = 0, 0  # rewinds since the run last got beyond its farthest update

    def open_writer(self, workdir, report) -> MetricWriter:
        """Metric files that hold the rows up to the current step; the first process alone writes them."""
        wanted = [self.config.log[name] and jax.process_index() == 0 for name in ("tensorboard", "csv", "jsonl")]
        return MetricWriter(str(Workdir(workdir).metrics), *wanted, self.step, report)

    def restore(self, say):
        """(state, step, position in the data): from the newest whole checkpoint, or the beginning."""
        config = self.config
        shapes = self.spec.checkpoint_shapes(config.train.batch_size)
        with self.ledger.spend("restore"):
            restored = self.checkpoints.restore_newest(shapes, say, self.parts.origin)
        self.ledger.update = restored[1]["step"] if restored else 0
        if restored is None:
            if self.validation.there and not config.data.validation:
                tell_of_holdout(config, self.parts.corpus, say)
            return self.begin(say), 0, 0
        state, data = restored
        going_on = f"going on with update {data['step'] + 1} of {config.train.steps}"
        if data["step"] >= config.train.steps:
            asked = f", {config.train.steps} asked" if data["step"] > config.train.steps else ""
            going_on = f"all {data['step']} updates are made{asked} (raise --config.train.steps to go on)"
        say(f"restored checkpoint {data['step']}; {going_on}")
        return self.spec.from_checkpoint(state), data["step"], data["position"]

    def begin(self, say):
        """The state before the first update: initial parameters, or those that `weights` or a teacher has."""
        state, layers = self.spec.init(self.config.seed, self.config.train.batch_size), self.config.distill.layers
        if self.weights is None and not layers:
            return state
        initial = self.spec.to_checkpoint(state)
        if self.weights:
            params, took = self.weights.taken(initial.params, self.config.model)
        else:
            taught = self.parts.teacher.read(self.spec.frozen_shapes())
            of = teacher_sets(layers, self.spec.model, self.spec.objective.teacher)
            params, took = begun(initial.params, self.spec.parameters, taught, of, self.config)
        say(took)
        return self.spec.from_checkpoint(initial.replace(params=params))

    def run(self) -> int:
        config = self.config
        feed, ends = self.feed(), contextlib.ExitStack()
        rewinds = config.train.on_bad_step == "rewind"
        try:
            if not self.make_up():
                return self.interrupted()
            while self.step < config.train.steps or self.pending:
                previous, self.pending = self.pending, None
                if self.step < config.train.steps:
                    try:
                        self.pending = self.update(feed)
                    except DataError:
                        self.keep(previous)
                        raise
                saves = self.due(config.checkpoint.every) or self.checkpoints.owes()
                with self.ledger.spend("step"):
                    bad = self.record(*previous) if previous else None
                    if saves and not (rewinds and bad is not None):
                        bad = self.read()  # first its row; and none of a bad one to go back to
                if rewinds and bad is not None:
                    feed = self.rewind(feed, bad)
                    continue
                if config.train.compare_every > 0 and self.step % config.train.compare_every == 0:
                    self.compare()
                if self.due(config.evaluate.every):
                    self.evaluate()
                if saves:
                    self.save()
                if shutdown.reached():
                    bad = self.read()
                    if rewinds and bad is not None:
                        feed = self.rewind(feed, bad)
                    return self.interrupted()
            return self.finish()
        except BaseException:  # which is what is told, whatever meets a folder that is away too
            ends.enter_context(contextlib.suppress(OSError))
            raise
        finally:
            closes = self.progress.close, self.writer.close, self.profile.close, self.goodput.close
            with ends:
                for end in (*closes, self.account, feed.close):  # the last first
                    ends.callback(end)

    def update(self, feed: "Feed"):
        """Sends the next update on its way: (step, position in the data behind it, its metrics, seconds).

        The seconds are the ledger's where the update is done already, as on CPUs; else None.
        """
        with self.ledger.spend("data"):
            batch = next(feed)
        self.profile.before(self.step + 1)
        if self.compiled:
            with self.ledger.spend("step"):
                self.state, metrics = self.spec.train_step(self.state, batch)
        else:
            with self.ledger.spend("compile"), self.progress.waiting("compiling; a large model's update takes minutes"):
                self.state, metrics = self.spec.train_step(self.state, batch)
                jax.block_until_ready(metrics)
                shutdown.hold()
        self.compiled = self.ledger.steady = True
        self.step, self.position = self.step + 1, self.position + 1
        self.ledger.update = self.step
        self.profile.after(self.step, metrics)
        return self.step, self.position, metrics, self.ledger.seconds() if metrics["grad_norm"].is_ready() else None

    def make_up(self) -> bool:
        """Validates the restored checkpoint if that was due and was cut short; False if it is again."""
        last, every = self.step >= self.config.train.steps, self.config.evaluate.every
        if not self.step or not (last or (every > 0 and self.step % every == 0)) or (last and self.otherwise):
            return True
        known = self.checkpoints.loss(self.step, self.validation.measure)
        if known is not None:
            self.validation.found(self.step, known)
            return True
        if not self.evaluate():
            return False
        if metrics := self.validation.of(self.step):
            self.checkpoints.score(
                self.step, metrics, self.progress.note, not last
            )  # who makes no update deletes nothing
        return True

    def keep(self, previous) -> None:
        """Saves the updates made before reading failed; several processes save together, and the others cannot now."""
        bad = self.record(*previous) if previous else None
        if jax.process_count() == 1 and (bad is None or self.config.train.on_bad_step == "skip"):
            self.save(wait=True)
            self.progress.note(f"reading failed: saved checkpoint {self.step}")

    def settle(self) -> None:
        """Waits for the update on its way, so that its seconds are charged to it and not to what comes next."""
        with self.ledger.spend("step"):
            jax.block_until_ready(self.state)

    def compare(self) -> None:
        """Raises FaultError where devices differ in what they hold alike."""
        self.settle()
        self.replicas.compare(self.state, self.step)

    def due(self, every: int) -> bool:
        """Whether something done every so many updates is due; the last update is left to `finish`."""
        return every > 0 and self.step % every == 0 and self.step < self.config.train.steps

    def read(self) -> int | None:
        """Records the update on its way, if there is one."""
        pending, self.pending = self.pending, None
        return self.record(*pending) if pending else None

    def record(self, step: int, position: int, metrics, seconds) -> int | None:
        """Reads an update's metrics, logs them, and returns its position in the data if it was bad."""
        values = jax.tree.map(float, metrics)
        self.rates.count(values["read"], seconds)
        bad = int(values["bad_in_row"])
        self.good = max(self.good, step - bad)
        if bad:
            skips = self.config.train.on_bad_step == "skip"
            counted = f" ({bad} in a row, {int(values['bad_total'])} in all)" if skips else ""
            self.progress.note(
                f"update {step} {'skipped' if skips else 'failed'}: loss or gradient not finite, with the batch at "
                f"data position {position - 1}{counted}"
            )
        if step % self.config.log.every == 0 or step == self.config.train.steps:
            row = compute_terms(self.spec.objective, values["sums"], values["counts"])
            row |= {name: values[name] for name in ("learning_rate", "grad_norm", "bad_total")}
            self.writer.write("train", step, row)
            with self.ledger.spend("save"):
                self.checkpoints.check()
            self.goodput.add(step, self.ledger.seconds(), self.checkpoints.whole, now=False)
            self.progress.update(step, row | self.rates.read())
        if bad >= self.config.train.max_bad_steps and self.config.train.on_bad_step == "skip":
            self.stop_bad(position - 1, bad)
        return position - 1 if bad else None

    def stop_bad(self, position: int, count: int):
        """Ends a run whose updates stay bad; one that goes back at each has saved what it goes back to."""
        if self.rewinds:
            self.checkpoints.wait()
            back = f"the run went back {count - 1} time{'s' * (count != 2)}, and again " if count > 1 else ""
            what = f"{back}an update had"
            left = "it stands where it last saved" if self.checkpoints.trained() else "it has saved nothing"
        else:
            self.read()  # first the row of the one that is on its way
            self.save(wait=True)
            what = f"{count} updates in a row had"
            left = f"none of them changed a parameter; the run is saved as checkpoint {self.step}"
        good, folder = self.checkpoints.sound(self.good), self.checkpoints.workdir.path
        begin = "" if good is None else f" and, if it evaluates well, --config.train.start_from={folder}@{good}"
        taken = self.config.train.start_from if not self.good else ""
        look = f", at what config.train.start_from = {taken} gives (by pretrain evaluate)" if taken else ""
        raise UserError(
            f"{what} a loss or gradient that is not finite, the last with the batch at data position {position}; "
            f"{left}; look at that data{look}, or begin in another --workdir with a lower config.schedule.peak{begin}"
        )

    def rewind(self, feed, bad_position: int):
        """Back to the last checkpoint, and past the batch that broke the update."""
        feed.close()
        self.rewinds = self.rewinds + 1 if self.step <= self.farthest else 1
        self.farthest = max(self.farthest, self.step)
        if self.rewinds >= self.config.train.max_bad_steps:
            self.stop_bad(bad_position, self.rewinds)
        self.account()
        with self.ledger.spend("save"):
            self.checkpoints.wait()
        self.state, self.step, position = self.restore(self.progress.note)
        self.account()
        self.position, self.pending = bad_position + 1, None
        self.validation.forget()
        if position != self.position:  # what the lanes remember is not what comes before their next rows
            self.state = self.spec.reset_recurrent_state(self.state, self.config.train.batch_size)
        self.writer.close()
        self.writer = self.open_writer(self.checkpoints.workdir.path, self.progress.note)
        self.progress.note(f"rewound to update {self.step}; the data goes on at position {self.position}")
        return self.feed()

    def account(self) -> None:
        """Writes down where the time went, and what is saved."""
        self.goodput.add(self.step, self.ledger.seconds(), self.checkpoints.whole)

    def feed(self) -> "Feed":
        """Batches from the current position on. What becomes of its readers each process says for itself."""
        own = functools.partial(print, file=sys.stderr, flush=True)
        return Feed(self.parts, self.position, own if jax.process_index() else self.progress.note)

    def evaluate(self) -> bool:
        """Scores the validation split, if there is one; False if that was cut short, because the run is to stop."""
        if not self.validation.there:
            return True
        self.settle()
        with self.ledger.spend("evaluate"):
            rows = self.validation.score(self.state.params, self.step, cut=shutdown.reached)
        if rows is None:
            return False
        shown, besides = rows
        self.writer.write("validation", self.step, shown | besides)
        self.progress.note(f"step {self.step}: validation {', '.join(worded(*item) for item in shown.items())}")
        return True

    def save(self, wait: bool = False) -> None:
        self.compare()
        self.account()
        with self.ledger.spend("save"):
            state = self.spec.to_checkpoint(self.state)
            origin = self.parts.origin | {CONFIG: self.config.to_dict()}
            told = state, self.position, self.validation.of(self.step), origin, int(state.bad_in_row)
            self.writer.flush()
            self.checkpoints.save(self.step, *told)
            if wait:
                self.checkpoints.wait(lambda: self.checkpoints.save(self.step, *told))

    def interrupted(self) -> int:
        self.save(wait=True)
        self.progress.note(f"interrupted: saved checkpoint {self.step}; start the same command again to go on")
        return PREEMPTED

    def finish(self) -> int:
        if (bad := self.step - self.good) >= self.config.train.max_bad_steps:  # as the start before this one ended
            self.stop_bad(self.position - 1, bad)
        if self.step > self.begun and not self.validation.of(self.step) and not self.evaluate():
            return self.interrupted()
        self.save(wait=True)
        own = f", {self.step - self.begun} of them by this start" * (self.begun > 0)
        own += f", the last {f'{bad} ' * (bad > 1)}skipped" * (bad > 0)
        made = f"{self.step} update{'s' * (self.step != 1)}{own}{',' * bool(own)}"
        self.progress.note(f"done: {made} in {self.ledger.summary()}")
        return 0


def goodput(workdir: Workdir) -> Goodput:
    """The ledger of a run's time, which process 0 alone writes."""
    path = workdir.goodput if jax.process_index() == 0 else None
    return Goodput(
        path, process_age(), host=socket.gethostname(), processes=jax.process_count(), devices=jax.device_count()
    )
