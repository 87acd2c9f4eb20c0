"""The start of a run: building its parts, and restoring or initialising its state."""

import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from input_pipeline import pipeline
from input_pipeline.batching.ramp import BatchSizes
from input_pipeline.batching.train import Ramp
from input_pipeline.pipeline import Corpus
from pretrain import changes
from pretrain import config as configs
from pretrain.checkpoints import params_only, restore
from pretrain.checkpoints import teacher as teachers
from pretrain.checkpoints.init_from import Weights, check_labels, find_weights
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.costs import capacity
from pretrain.costs.flops import tokens_of_row
from pretrain.distributed.consensus import assert_equal_on_hosts, on_host0
from pretrain.errors import UserError
from pretrain.evaluation.evaluation import measure, selected, split_of
from pretrain.losses.distill import teacher_sets
from pretrain.metrics.goodput import last_saved_step
from pretrain.metrics.progress import Ledger, amount
from pretrain.optimizers.schedules import warn_of_change, warn_of_end, warn_of_unused_keys
from pretrain.parallel.devices import describe_devices
from pretrain.step.checks import batch_sizes, check_config, check_mesh, check_model, check_vocabulary
from pretrain.step.train_spec import TrainSpec
from pretrain.tasks.metrics import require as require_metrics
from pretrain.workdir import FRESH_START, Workdir

DEVICE_BATCHES = 2  # batches queued on the devices: one is copied while another waits
MIN_VOCAB_USE = 0.8  # below it a warning: published tables have at most a few hundred rows without a token


@dataclasses.dataclass(frozen=True)
class RunParts:
    """The step and the data that a config describes."""

    config: object
    spec: TrainSpec
    corpus: Corpus
    teacher: teachers.Teacher | None = None

    @property
    def origin(self) -> dict[str, str]:
        """Fingerprints of the tokenizer, the text and the teacher that a checkpoint belongs to."""
        return self.corpus.origin | ({"teacher": self.teacher.fingerprint} if self.teacher else {})

    @functools.cached_property
    def sizes(self) -> BatchSizes:
        """Rows of each training batch."""
        return batch_sizes(self.config)

    def batches(self, position: int) -> Iterator[dict]:
        """Training batches on the devices, from a position in the data on; `close()` it when done."""
        config, layout, ready, sizes = self.config, self.spec.layout, collections.deque(), self.sizes
        size, how = config.train.batch_size, {"workers": config.data.workers, "prefetch": config.data.prefetch}
        if len(sizes) > 1:
            how["ramp"] = Ramp(sizes, {stage.size: layout.rows(stage.size) for stage in sizes})
        host = self.corpus.batches(seed=config.seed, batch_size=size, rows=layout.rows(size), start=position, **how)
        with contextlib.closing(host):
            for number in itertools.count(position):
                # Copying to the devices is asynchronous: it overlaps with the step that runs.
                ready.append(self.spec.put(next(host), sizes.size(number)))
                if len(ready) == DEVICE_BATCHES:
                    yield ready.popleft()


@dataclasses.dataclass(frozen=True)
class OtherRuns:
    """Parameters of other runs: `weights` to start from, and a `teacher`."""

    weights: Weights | None = None
    teacher: teachers.Teacher | None = None

    def check(self, spec: TrainSpec, config, begins: bool) -> None:
        """Raise UserError where a checkpoint does not fit the model."""
        shapes = spec.checkpoint_shapes(config.train.batch_size).params
        if self.weights:
            self.weights.check(shapes, config.model)
            check_labels(self.weights.objective, config.objective, self.weights.label)
        if self.teacher:
            self.teacher.weights.check(spec.frozen_shapes(), self.teacher.weights.model)
            if begins and config.distill.layers:
                teacher_sets(config.distill.layers, spec.model, spec.objective.teacher)

    @property
    def with_tokenizer(self) -> list[Weights]:
        """Runs whose tokenizer this run must share; it inherits the first one's."""
        return [one for one in (self.weights, self.teacher.weights if self.teacher else None) if one]


def build_run(
    config,
    workdir: str,
    report: Callable[[str], None],
    *,
    training: bool = False,
    begins: bool = False,
    others: OtherRuns = OtherRuns(),
    prepare: Callable = pipeline.prepare,
    before_tokenizing: Callable[[], None] = lambda: None,
) -> RunParts:
    """Build a run's spec and open its data with `prepare`, cheap checks first.

    `begins`: the run is at step 0, where table sizes can still change. Errors: UserError, ModelError, DataError.
    """
    if "metrics" in config.objective:
        require_metrics(config.objective.kind, config.objective.metrics)
    check_config(config)
    spec = TrainSpec.build(config, report=report)
    check_model(spec.model, config)
    check_mesh(spec, config, training)
    if training:
        capacity.check_memory(spec, config)
    others.check(spec, config, begins)
    same_tokenizer = others.with_tokenizer if training else []
    # A collective of all processes, so it must not run in `accept`.
    fingerprints = [one.tokenizer_fingerprint() for one in same_tokenizer]
    if same_tokenizer:
        prepare = functools.partial(prepare, inherited=same_tokenizer[0].tokenizer)
    sizes_are_free = begins and not same_tokenizer and not configs.takes_tokenizer(config)

    def accept(tokenizer) -> None:  # may run in one process while others wait: no collectives here
        check_vocabulary(spec.model, tokenizer.vocab_size)
        if sizes_are_free and tokenizer.vocab_size < MIN_VOCAB_USE * spec.model.vocab_size:
            report(
                f"warning: config.model.vocab_size={spec.model.vocab_size:,}, but the tokenizer has "
                f"{tokenizer.vocab_size:,} entries; --config.model.vocab_size={tokenizer.vocab_size} saves the rest"
            )
        for other, fingerprint in zip(same_tokenizer, fingerprints, strict=True):
            other.check_tokenizer(tokenizer, fingerprint)
        before_tokenizing()

    sections = configs.data_section(config), config.tokenizer.to_dict(), config.objective.to_dict()
    corpus = prepare(*sections, Workdir(workdir).folders, report=report, accept=accept)
    # Processes may read the data from different disks.
    texts = {f"the text of {split}": corpus.identity(split) for split in corpus.splits}
    remedy = "let all of them read the same text with the same tokenizer"
    assert_equal_on_hosts({"the tokenizer": corpus.tokenizer.fingerprint} | texts, remedy)
    if training and begins:
        corpus.check_predicted(config.seed, config.train.batch_size, report)
    if config.optimizer.unfreeze:
        spec = spec.with_epoch(config, corpus.rows_per_epoch / config.train.batch_size)
    if others.teacher:
        spec.set_frozen(others.teacher.read(spec.frozen_shapes()))
    return RunParts(config, spec, corpus, others.teacher)


def describe_start(run: RunParts, workdir: str) -> str:
    """One line on what a run trains, and on what: devices, mesh, parameters, tokens, steps, work folder."""
    train, shape = run.config.train, run.spec.layout.mesh.shape
    mesh = " ".join(f"{axis}={size}" for axis, size in shape.items() if size > 1) or "data=1"
    epochs = run.sizes.rows_before(train.steps) / run.corpus.rows_per_epoch
    row, ends = tokens_of_row(run.spec, run.config.data.length), dict.fromkeys((run.sizes[0], run.sizes[-1]))
    sizes, trained = (
        [leaf.size for leaf in jax.tree.leaves(tree)]
        for tree in (run.spec.param_shapes, run.spec.partition.trained(run.spec.param_shapes))
    )
    learn = f" ({amount(sum(trained))} trained)" if len(trained) < len(sizes) else ""
    parts = [
        f"devices {describe_devices(jax.devices())}",
        f"mesh {mesh}",
        f"params {amount(sum(sizes))}{learn}",
        f"tokens/step {' to '.join(f'{stage.size * row:,}' for stage in ends)}",
        f"steps {train.steps:,} ({epochs:.3g} epochs)",
        f"workdir {workdir}",
    ]
    return "  ".join(parts)


def restore_or_init(run: RunParts, checkpoints: CheckpointManager, weights: Weights | None, ledger: Ledger, report):
    """(state, step, position in the data, tokens read): of the newest whole checkpoint, else of step 0."""
    spec, steps = run.spec, run.config.train.steps
    shapes = spec.checkpoint_shapes(run.config.train.batch_size)
    with ledger.spend("restore"):
        restored = checkpoints.restore_newest(shapes, report, run.origin)
    if restored is None:
        if "validation" in run.corpus.splits and not run.config.data.validation:
            # Held out by document, so the share of tokens is only about data.holdout.
            share, tokens = run.config.data.holdout, run.corpus.tokens("validation")
            report(f"{share:.3g} of data.train ({tokens:,} tokens) is held out for validation (config.data.holdout)")
        if weights and (base := weights.base(spec.partition.frozen, shapes.params)):
            checkpoints.base = base
            on_host0(base.pin)
            report(f"checkpoints leave out {len(base.names)} frozen parameters, read from {base.folder}: keep it")
        return _init(run, weights, report), 0, 0, 0
    state, data = restored
    if base := checkpoints.base:  # what is no longer frozen belongs into checkpoints
        names = tuple(name for name in base.names if name in spec.partition.frozen)
        checkpoints.base = dataclasses.replace(base, names=names)
    step = data["step"]
    done = f"all {step} steps are done (raise --config.train.steps to continue)"
    report(f"restored checkpoint {step}, {done if step >= steps else f'continuing at step {step + 1}/{steps}'}")
    # Older checkpoints have no count: their rows are taken as full.
    full = run.sizes.rows_before(data["position"]) * tokens_of_row(spec, run.config.data.length)
    return spec.from_checkpoint(state), step, data["position"], data.get(restore.TOKENS, full)


def _init(run: RunParts, weights: Weights | None, report):
    """The state at step 0: initial parameters, or those of `weights` or of a teacher's layers."""
    spec, train, layers = run.spec, run.config.train, run.config.distill.layers
    state = spec.init(run.config.seed, train.batch_size)
    if weights is None and not layers:
        return state
    # In checkpoint form tables have their true sizes, as the other run's have.
    initial = spec.to_checkpoint(state)
    if weights:
        params, message = weights.load_into(initial.params, run.config.model)
    else:
        sets = teacher_sets(layers, spec.model, spec.objective.teacher)
        taught = run.teacher.read(spec.frozen_shapes())
        params, message = teachers.init_from_teacher(initial.params, spec.parameters, taught, sets, run.config)
    report(message)
    return spec.from_checkpoint(initial.replace(params=params))


def check_local_folder(config, workdir: str, fresh: str) -> None:
    """Raise UserError for options that a work folder in an object store does not support."""
    options = {"--fresh": fresh, "config.distill.teacher": config.distill.teacher}
    for name, value in (options | {"config.log.profile": config.log.profile}).items():
        if value and Workdir(workdir).remote:
            raise UserError(f"{name}={value}: {workdir} is in an object store. Give a --workdir on a disk.")


def check_same_run(config, workdir: str, allowed: Sequence[str] | None = None) -> None:
    """Raise UserError if `workdir` holds a run of another config; imported weights do not count as a run.

    allowed: keys of --allow; None for commands without that flag.
    """
    here = Workdir(workdir)
    if params_only.has_initial_weights(here):
        return
    changes.check_same_run(workdir, config, allowed)
    if steps := here.steps():
        # config.json can be edited by hand; the newest checkpoint has the config that it was made with.
        made_with = restore.saved_config(restore.read_notes(here.checkpoint(steps[-1])))
        remedy = f"undo the change, or {FRESH_START}"
        changes.check_unedited(workdir, config, made_with, allowed or (), remedy)


def check_can_continue(config, workdir: str, allowed: Sequence[str] = ()) -> None:
    """Raise UserError where `workdir` holds a run that `config` cannot continue. Writes nothing."""
    check_same_run(config, workdir, allowed)
    check_checkpoints_exist(workdir)
    here = Workdir(workdir)
    # Without the check another tokenizer would be trained, and refused only then.
    if here.steps() and not pipeline.has_tokenizer(here.folders.tokenizer):
        raise UserError(
            f"{workdir} has checkpoints without their tokenizer. Restore its folder tokenizer, or {FRESH_START}."
        )


def check_checkpoints_exist(workdir: str) -> None:
    """Raise UserError where a run had checkpoints, and all are gone. Writes nothing."""
    here = Workdir(workdir)
    # Imported weights are a checkpoint of step 0, but no progress of a run.
    if any(not restore.is_weights_only(here.checkpoint(step)) for step in here.steps()):
        return
    saved = last_saved_step(here.goodput)
    damaged = here.broken.is_dir() and any(here.broken.iterdir())
    if saved or damaged:
        had = f"had checkpoint {saved} and has none now" if saved else "has no checkpoint to continue from"
        where = f" (damaged ones are in {here.broken})" if damaged else ""
        raise UserError(f"{workdir} {had}{where}. Bring one back into {here.checkpoints}, or {FRESH_START}.")


def find_other_runs(config, workdir: str, fresh: bool) -> OtherRuns:
    """Find the runs in `train.start_from` and `distill.teacher`; a resumed run reads its own copy of the teacher."""
    here = Workdir(workdir)
    imported = not fresh and on_host0(lambda: params_only.has_initial_weights(here))
    continues = not fresh and not imported and on_host0(lambda: bool(here.steps()))
    if continues:
        return OtherRuns(None, teachers.load_teacher(config, workdir))
    teacher, start_from = teachers.find_teacher(config, workdir), config.train.start_from
    if not imported:
        return OtherRuns(find_weights(start_from, workdir) if start_from else None, teacher)
    for key, value in (("train.start_from", start_from), ("distill.layers", tuple(config.distill.layers))):
        if value:
            raise UserError(f"config.{key}={value}, but {workdir} has imported weights. Leave one out.")
    name, model = f"the imported weights of {workdir}", configs.saved(workdir).model
    weights = Weights(name, params_only.initial_weights(here), here.folders.tokenizer, model, complete=True)
    return OtherRuns(weights, teacher)


def find_tokenizer(config, workdir: str) -> Path | None:
    """The tokenizer's folder of the run in `train.start_from` or `distill.teacher`; None without either."""
    for name, key in ((config.train.start_from, "train.start_from"), (config.distill.teacher, "distill.teacher")):
        if name:
            return find_weights(name, workdir, key).tokenizer
    return None


def save_config(config, workdir: str) -> None:
    """Write the config of a run without a checkpoint, so that --workdir alone continues it.

    While a run is being moved away, the config in the folder is still that run's.
    """
    here = Workdir(workdir)
    if jax.process_index() == 0 and not here.steps() and here.being_moved() is None:
        configs.save(config, workdir)


def report_measure(run: RunParts, checkpoints: CheckpointManager, step: int, report) -> bool:
    """Report whether validation losses are measured in another way than before; return it."""
    if split_of(run.config, selected(run.config)[0])[0] not in run.corpus.splits:
        return False
    before, effect = checkpoints.measures()[-1:], "earlier losses no longer count towards the best checkpoint"
    if step >= run.config.train.steps:  # the last loss may be missing: compare with the run's own config
        workdir = str(checkpoints.workdir.path)
        before = [on_host0(lambda: measure(configs.saved(workdir), run.corpus))]
        effect = "nothing is evaluated again"
    if before in ([], [measure(run.config, run.corpus)]):
        return False
    report(f"the validation loss is measured in another way than before (config.evaluate or its text): {effect}")
    return True


def report_changes(config, workdir: str, step: int, report) -> None:
    """Report and record what the config changes since the checkpoint of `step` was saved, and keys without effect."""
    warnings = [warn_of_end(config, step), warn_of_unused_keys(config)]
    if 0 < step < config.train.steps and Workdir(workdir).config.is_file():
        made_with = restore.saved_config(restore.read_notes(Workdir(workdir).checkpoint(step)))
        before = changes.of_start(configs.saved(workdir), made_with)
        warnings.append(warn_of_change(before, config, step))
        warnings += map(changes.describe, changes.record(workdir, before, config, step))
    for warning in filter(None, warnings):
        report(warning)
