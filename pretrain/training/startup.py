"""The start of a run: what is built of its config, what its work folder holds, and what it begins with."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import jax

from configs import common
from input_pipeline import pipeline
from input_pipeline.pipeline import Corpus
from pretrain import config as configs
from pretrain.checkpoints import params_only, restore
from pretrain.checkpoints import teacher as teachers
from pretrain.checkpoints.init_from import Weights, find
from pretrain.costs import capacity
from pretrain.distributed.consensus import assert_equal_on_hosts, on_host0
from pretrain.errors import UserError
from pretrain.evaluation.evaluation import measure
from pretrain.losses.distill import teacher_sets
from pretrain.metrics.goodput import newest_saved
from pretrain.optimizers.schedules import warn_of_change, warn_of_end, warn_of_unused_keys
from pretrain.step.checks import check_config, check_mesh, check_model, check_vocabulary
from pretrain.step.train_spec import TrainSpec
from pretrain.workdir import ANEW, POSITION, Workdir, real

FEW_ROWS = 20  # of validation, whose loss says little
MOSTLY_USED = 0.8  # of a vocabulary: published tables have at most a few hundred rows without a token


@dataclasses.dataclass(frozen=True)
class RunParts:
    """What a config describes, built: the step and the data."""

    config: object
    spec: TrainSpec
    corpus: Corpus
    teacher: teachers.Teacher | None = None

    @property
    def origin(self) -> dict[str, str]:
        """Fingerprints of the tokenizer, the text and the teacher that a checkpoint belongs to."""
        return self.corpus.origin | ({"teacher": self.teacher.fingerprint} if self.teacher else {})


def build_spec(config, report, training: bool) -> TrainSpec:
    """Build a config's spec and check it. Errors: UserError, ModelError, DataError."""
    check_config(config)
    spec = TrainSpec.build(config, report=report)
    check_model(spec.model, config)
    check_mesh(spec, config, training)
    if training:
        capacity.check_memory(spec, config)
    return spec


def build_run(
    config,
    workdir: str,
    report: Callable[[str], None],
    *,
    training: bool = False,
    begins: bool = False,
    weights: Weights | None = None,
    teacher: teachers.Teacher | None = None,
    prepare: Callable = pipeline.prepare,
    accepted: Callable[[], None] = lambda: None,
) -> RunParts:
    """Build a run's spec and open its data with `prepare`, the cheap checks first.

    `weights` and `teacher` are other runs' parameters; without a tokenizer of its own the run has theirs. `begins`: the
    run is at update 0, where table sizes can still change. `accepted` is called before hours of tokenizing may begin.
    """
    spec = build_spec(config, report, training)
    if weights:
        weights.check(spec.checkpoint_shapes(config.train.batch_size).params, config.model)
    if teacher:
        teacher.weights.check(spec.frozen_shapes(), teacher.weights.model)
        if begins and config.distill.layers:
            teacher_sets(config.distill.layers, spec.model, spec.objective.teacher)
            teacher.weights.check_positions(spec.checkpoint_shapes(config.train.batch_size).params, config.model)
    others = [one for one in (weights, teacher.weights if teacher and training else None) if one]
    trained_with = [one.trained_with() for one in others]
    if others:
        prepare = functools.partial(prepare, taken=others[0].tokenizer)
    sizes_are_free = begins and not others and not configs.takes_tokenizer(config)

    def accept(tokenizer) -> None:  # perhaps in one process while others wait for it: no collectives here
        check_vocabulary(spec.model, tokenizer.vocab_size)
        if sizes_are_free and tokenizer.vocab_size < MOSTLY_USED * spec.model.vocab_size:
            report(
                f"warning: config.model.vocab_size={spec.model.vocab_size:,}, but the tokenizer has "
                f"{tokenizer.vocab_size:,} entries; --config.model.vocab_size={tokenizer.vocab_size} saves the rest"
            )
        for other, fingerprint in zip(others, trained_with, strict=True):
            other.check_tokenizer(tokenizer, fingerprint)
        accepted()

    sections = config.data.to_dict(), config.tokenizer.to_dict(), config.objective.to_dict()
    corpus = prepare(*sections, Workdir(workdir).folders, report=report, accept=accept)
    texts = {f"the text of {split}": corpus.stream(split).identity for split in corpus.splits}
    remedy = "let all of them read the same text with the same tokenizer"
    assert_equal_on_hosts({"the tokenizer": corpus.tokenizer.fingerprint} | texts, remedy)
    if teacher:
        spec.set_frozen(teacher.read(spec.frozen_shapes()))
    return RunParts(config, spec, corpus, teacher)


def cannot(why: str) -> str:
    """The sentence of a work folder that fails."""
    return f"the work folder cannot be used ({why}); mend that, or choose another --workdir"


def check_own(config, workdir: str) -> None:
    """Raises UserError where the run in `workdir` is of another config. Writes nothing.

    Weights alone are no run: what is done with them is for `config` to say.
    """
    if not params_only.begins(Workdir(workdir)):
        try:
            configs.check_same_run(workdir, config)
        except UserError:
            TrainSpec.build_abstract(config)  # a value that can be in no config is named first
            raise
        here = Workdir(workdir)
        newest = (
            folder for step in reversed(here.steps()) if restore.is_whole(folder := here.checkpoint(step), POSITION)
        )
        if folder := next(newest, None):
            configs.check_unedited(
                workdir, config, restore.made_with(restore.noted(folder)), f"undo the change, or {ANEW}"
            )


def check_goes_on(config, workdir: str) -> None:
    """Raises UserError where `workdir` holds a run that `config` cannot go on with. Writes nothing."""
    check_own(config, workdir)
    check_kept(workdir)
    here = Workdir(workdir)
    if here.steps() and not pipeline.has_tokenizer(here.folders.tokenizer):
        raise UserError(
            f"{workdir} holds checkpoints, but not the tokenizer that they were made with; restore its folder "
            f"tokenizer, make it again with `pretrain prepare` if the text is what it was, or {ANEW}"
        )


def check_kept(workdir: str) -> None:
    """Raises UserError where a run had checkpoints to go on from, and all are gone. Writes nothing."""
    here = Workdir(workdir)
    if any(not params_only.is_alone(here.checkpoint(step)) for step in here.steps()):
        return
    saved = newest_saved(here.goodput)
    damaged = here.broken.is_dir() and any(here.broken.iterdir())
    if saved or damaged:
        had = f"had checkpoint {saved} and has none now" if saved else "has no checkpoint to go on from"
        where = f" (damaged ones lie in {here.broken})" if damaged else ""
        raise UserError(f"{workdir} {had}{where}; bring one back into {here.checkpoints}, or {ANEW}")


def check_place(config, workdir: str, fresh: str) -> None:
    """Raises UserError for what cannot be done in a work folder that lies in an object store."""
    if not Workdir(workdir).remote:
        return
    asked = {
        "--fresh": fresh,
        "config.distill.teacher": config.distill.teacher,
        "config.log.profile": config.log.profile,
    }
    for name, value in asked.items():
        if value:
            raise UserError(
                f"{name} = {value} needs a work folder on a disk, and {workdir} lies in an object store, where no "
                "folder can be renamed or filled bit by bit; leave it out, or choose another --workdir"
            )


def tell_of_fresh(workdir: str, name: str, held_run: bool, has_weights: bool, say) -> None:
    """Says what `--fresh=name` has put aside, and that imported weights are among it where a run begins without."""
    aside = Workdir(workdir).earlier / name
    if held_run:
        say(f"what was there is kept in {aside}")
    else:
        say(f"--fresh={name} has put nothing aside: {workdir} held no run")
    if not has_weights and params_only.is_alone(params_only.folder_in(Workdir(aside))):
        say(
            "the imported weights are there too, and this run does not begin with them; to have it begin so, give "
            f"--fresh another name, and --config.train.start_from={aside}@0"
        )


def tell_of_holdout(config, corpus: Corpus, say) -> None:
    """Says how much is held out, and where that is little, of a recipe for much text, what holds out more."""
    share, usual = config.data.holdout, common.base().data.holdout
    tokens = corpus.stream("validation").tokens
    told = f"{100 * share:g}% of data.train is held out for validation (config.data.holdout)"
    if tokens < FEW_ROWS * config.data.length and share < usual:
        told += f": {tokens:,} tokens, which say little; in a new folder --config.data.holdout={usual:g} holds more out"
    say(told)


def leave_config(config, workdir: str) -> None:
    """Writes the config of a run without a checkpoint, so that a start with --workdir alone goes on with it.

    Where a run was being put aside, the config that is there is still that run's.
    """
    here = Workdir(workdir)
    if jax.process_index() == 0 and not here.steps() and here.being_moved() is None:
        configs.save(config, workdir)


def tell_of_measure(run: RunParts, workdir: str, step: int, measures: list[str], say) -> bool:
    """Says if validations are made in another way than the run's before, and returns whether they are.

    `measures` are how its losses were measured, oldest first. A run whose updates are all made, and whose last loss may
    be still to come, measures as its own config has it.
    """
    own, then = measures[-1:], "earlier losses no longer count towards the best checkpoint"
    if step >= run.config.train.steps:
        own = [on_host0(lambda: measure(configs.saved(workdir), run.corpus))]
        then = "nothing is measured anew"
    if own in ([], [measure(run.config, run.corpus)]):
        return False
    say(
        "the validation loss is measured in another way than before (config.evaluate, config.objective.selects "
        f"or the validation text changed): {then}"
    )
    return True


def tell_of_changes(config, workdir: str, step: int, say) -> None:
    """Says what a run that has made `step` updates would not be expected to do, or did otherwise before.

    Before is when the checkpoint of `step` was saved: a start since then may have trained nothing.
    """
    told = [warn_of_end(config, step), warn_of_unused_keys(config)]
    if step and Workdir(workdir).config.is_file():
        made_with = restore.made_with(restore.noted(Workdir(workdir).checkpoint(step)))
        before = configs.of_start(configs.saved(workdir), made_with)
        told += [warn_of_change(before, config, step), configs.changed_dropout(before, config)]
    for sentence in filter(None, told):
        say(sentence)


def weights_to_begin_with(config, workdir: str, fresh: bool) -> Weights | None:
    """The weights that a start at update 0 begins with: of `config.train.start_from`, or the work folder's own."""
    here = Workdir(workdir)
    if not fresh and on_host0(lambda: params_only.begins(here)):
        if config.train.start_from:
            raise UserError(
                f"config.train.start_from = {config.train.start_from}, and {workdir} has imported weights to begin "
                "with; leave it out, or choose another --workdir"
            )
        if config.distill.layers:
            raise UserError(
                f"config.distill.layers = {tuple(config.distill.layers)}, and {workdir} has imported weights to begin "
                "with; set --config.distill.layers=(), or choose another --workdir"
            )
        named, tokenizer = f"the imported weights of {workdir}", here.folders.tokenizer
        return Weights(named, params_only.folder_in(here), tokenizer, configs.saved(workdir).model, whole=True)
    goes_on = not fresh and on_host0(lambda: bool(here.steps()))
    if goes_on or not config.train.start_from:
        return None
    return find(config.train.start_from, workdir)


def tokenizer_of_another(config, workdir: str) -> Path | None:
    """The folder of the tokenizer of the run that `config` begins with, or else learns from; None where of neither."""
    for named, key in ((config.train.start_from, "train.start_from"), (config.distill.teacher, "distill.teacher")):
        if named:
            return find(named, workdir, key).tokenizer
    return None


def teacher_of(config, workdir: str, fresh: bool) -> teachers.Teacher | None:
    """The teacher of a run: of one that goes on the work folder's own, at update 0 what `config` names."""
    here = Workdir(workdir)
    goes_on = not fresh and on_host0(lambda: bool(here.steps()) and not params_only.begins(here))
    if goes_on:
        return teachers.kept(config, workdir)
    found = teachers.named(config, workdir)
    if found and fresh and real(found.run) == real(here.teacher.path):
        raise UserError(
            f"config.distill.teacher = {config.distill.teacher} is the copy that {workdir} keeps, which --fresh puts "
            "aside with the run; name the run that it was made of, or copy it to a folder of its own first"
        )
    return found
