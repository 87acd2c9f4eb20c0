"""From a config to the parts that training, evaluation and generation share."""

import dataclasses
import functools
from collections.abc import Callable

import models
from configs.common import STOPPING
from input_pipeline import corruption, pipeline, requirements
from input_pipeline.tokenizers.settings import known_size
from pretrain import config as configs
from pretrain.checkpoints.init_from import Weights
from pretrain.checkpoints.teacher import Teacher
from pretrain.costs import capacity
from pretrain.distributed.consensus import check_alike
from pretrain.errors import UserError
from pretrain.losses.distill import sets
from pretrain.step import recurrent_state
from pretrain.step.engine import make_engine
from pretrain.step.train_spec import check_attention, make_learner
from pretrain.step.train_step import Learner
from pretrain.workdir import Workdir

MOSTLY_USED = 0.8  # of a vocabulary: released tables have at most a few hundred rows that no token has


@dataclasses.dataclass
class Assembly:
    """What a config describes, built: compiled steps and the data."""

    config: object
    engine: object
    corpus: pipeline.Corpus
    teacher: Teacher | None = None

    @property
    def learner(self) -> Learner:
        return self.engine.learner

    @property
    def origin(self) -> dict[str, str]:
        """What a checkpoint is a checkpoint of: tokenizer, text and teacher, each by its fingerprint."""
        return self.corpus.origin | ({"teacher": self.teacher.fingerprint} if self.teacher else {})


def assemble(
    config,
    workdir: str,
    report,
    *,
    training: bool = False,
    begins: bool = False,
    weights: Weights | None = None,
    teacher: Teacher | None = None,
    prepare=pipeline.prepare,
    accepted: Callable[[], None] = lambda: None,
) -> Assembly:
    """Builds a run's parts, the cheap checks first; `report` is told what takes long, `prepare` makes the data.

    `weights` of another run, with which training is to begin, are refused before the data is made, which is with that
    run's tokenizer where the config names none; so is a `teacher`. `accepted` is called before text is tokenised, which
    may take hours. `begins` says that training is at update 0, where the sizes of tables may still be chosen.
    """
    check_sizes(config)
    engine = make_engine(make_learner(config), config, report=report)
    check_split(engine, config, training)
    if training:
        capacity.check_training(engine, config)
    capacity.check_evaluation(engine, config)
    if weights:
        weights.check(engine.shapes(config.train.batch_size).params, config.model)
    if teacher:
        teacher.weights.check(engine.frozen_shapes(), teacher.weights.model)
        if begins and config.distill.layers:
            sets(config.distill.layers, engine.learner.model, engine.learner.objective.teacher)
            teacher.weights.check_positions(engine.shapes(config.train.batch_size).params, config.model)
    others = [one for one in (weights, teacher.weights if teacher and training else None) if one]
    trained_with = [one.trained_with() for one in others]
    if others:
        prepare = functools.partial(prepare, taken=others[0].tokenizer)

    def accept(tokenizer) -> None:  # perhaps of one process, while the others wait for its tokenizer: none meet here
        check_vocabulary(config, tokenizer.vocab_size)
        free = begins and not others and not configs.takes_tokenizer(config)  # no other run's tables are as large
        if free and tokenizer.vocab_size < MOSTLY_USED * config.model.vocab_size:
            report(
                f"the tokenizer has {tokenizer.vocab_size:,} entries and config.model.vocab_size is "
                f"{config.model.vocab_size:,}: all other rows of the model's tables stay unused "
                f"(--config.model.vocab_size={tokenizer.vocab_size} makes none)"
            )
        for other, there in zip(others, trained_with, strict=True):
            other.check_tokenizer(tokenizer, there)
        accepted()

    corpus = prepare(
        config.data.to_dict(),
        config.tokenizer.to_dict(),
        config.objective.to_dict(),
        Workdir(workdir).folders,
        report=report,
        accept=accept,
    )
    texts = {f"the text of {split}": corpus.stream(split).identity for split in corpus.splits}
    remedy = "let all of them read the same text with the same tokenizer"
    check_alike({"the tokenizer": corpus.tokenizer.fingerprint} | texts, remedy)
    if teacher:
        engine.hold(teacher.read(engine.frozen_shapes()))
    return Assembly(config, engine, corpus, teacher)


def check_sizes(config) -> None:
    """Raises UserError where lengths, batch sizes and choices of a config contradict each other."""
    train, data = config.train, config.data
    if train.batch_size % train.accumulate:
        raise UserError(
            f"config.train.batch_size = {train.batch_size} does not divide into config.train.accumulate = "
            f"{train.accumulate} equal parts; change one of them"
        )
    if data.length > config.model.context:
        raise UserError(
            f"config.data.length = {data.length} is longer than the model's config.model.context = "
            f"{config.model.context} positions; lower the one or raise the other"
        )
    length = configs.scored_length(config)
    check_scored(config)
    key, context = _scoring_context(config)
    task = corruption.build(config.objective.to_dict())
    for of, size, room, end in (
        ("config.data.length", data.length, "config.model.context", config.model.context),
        (configs.scored_key(config), length, key, context),
    ):
        requirements.check_length(of, size, config.objective.to_dict())
        if task.two_texts and task.target_length(size) > end:
            raise UserError(
                f"{of} = {size} with config.objective.density = {config.objective.density} makes targets of "
                f"{task.target_length(size)} tokens, longer than the model's {room} = {end} positions; lower {of} or "
                "the density, or raise the context"
            )
    requirements.check_stride(config.evaluate.stride or length, length, data.layout, task.bare)
    model = models.build(config.model.to_dict())
    if recurrent_state.shapes(model, 1) and data.layout != "stream":
        raise UserError(
            f"config.data.layout = '{data.layout}' gives the model's memory nothing to go on with; "
            "set --config.data.layout=stream"
        )
    if train.on_bad_step not in ("skip", "rewind"):
        raise UserError(f"config.train.on_bad_step is '{train.on_bad_step}'; choose one of: skip, rewind")
    window = tuple(config.log.profile)
    if window and window[0] > train.steps:
        raise UserError(
            f"config.log.profile = {window} traces no update of this run, which ends with update {train.steps} "
            "(config.train.steps); name earlier ones, or leave it empty"
        )
    stopping = config.evaluate.stopping
    if stopping not in STOPPING:
        raise UserError(f"config.evaluate.stopping is '{stopping}'; choose one of: {', '.join(STOPPING)}")
    special = corruption.special(config.objective.to_dict(), data.layout)
    entries = known_size(config.tokenizer.to_dict(), special)
    if entries is not None and not configs.takes_tokenizer(config):  # which is of any size
        check_vocabulary(config, entries)


def check_scored(config, given: int = 0) -> None:
    """Raises UserError where rows, of --length where that is `given`, are longer than the model reads that scores."""
    key, context = _scoring_context(config)
    length = given or configs.scored_length(config)
    if length <= context:
        return
    told, remedy = f"{configs.scored_key(config)} = {length}", "lower the one (0 means config.data.length)"
    more = "" if given and key == "config.model.context" else " or raise the other"
    if given:  # to the evaluation of a model that is trained already
        told, remedy = f"--length={given}", "lower it"
    elif not config.evaluate.length:
        told, remedy = f"{told} (config.evaluate.length = 0 means that)", f"set --config.evaluate.length={context}"
    raise UserError(f"{told} is longer than the model's {key} = {context} positions; {remedy}{more}")


def _scoring_context(config) -> tuple[str, int]:
    """The key that says how many positions the model has that scores, and how many."""
    changed = config.evaluate.model.to_dict()
    if "context" in changed:
        return "config.evaluate.model.context", changed["context"]
    return "config.model.context", config.model.context


def check_split(engine, config, training: bool) -> None:
    """Raises UserError or ModelError where evaluation, or `training`, cannot be split over the engine's mesh."""
    check_batches(engine.layout, engine.learner, config, training)
    with engine.scope():
        check_attention(engine.learner, config, training)


def check_batches(layout, learner, config, training: bool) -> None:
    """Raises UserError where rows or lengths of evaluation, or of `training`, cannot be split over a layout's mesh."""
    length = configs.scored_length(config)
    _check_rows(layout, learner, layout.filled(config.evaluate.batch_size), length, configs.scored_key(config))
    if training:
        rows = config.train.batch_size // config.train.accumulate
        layout.check("batch", rows, "config.train.batch_size / train.accumulate")
        _check_rows(layout, learner, rows, config.data.length, "config.data.length")


def _check_rows(layout, learner, rows: int, length: int, key: str) -> None:
    """Raises UserError where a feature of so many rows of `length`, the value of `key`, cannot be split."""
    layout.check("length", length, key)
    for name, (shape, _, axes) in learner.features(rows, length).items():
        for axis, size in zip(axes, shape, strict=True):
            if axis == "length":
                layout.check(axis, size, f"the length of '{name}' that {key} = {length} and config.objective make")
        layout.batch(shape, axes)


def check_vocabulary(config, entries: int) -> None:
    """Raises UserError where the tokenizer, which has so many entries, has more than the model."""
    if entries > models.build(config.model.to_dict()).reads:
        raise UserError(
            f"config.model.vocab_size = {config.model.vocab_size} is smaller than the tokenizer's {entries} entries; "
            f"set --config.model.vocab_size={entries} or use a smaller tokenizer"
        )
