"""Checks of a config, first alone and then against the model and the mesh that were built from it."""

import jax

from configs.ranges import STOPPING
from input_pipeline import corruption, validate
from input_pipeline.batching.ramp import BatchSizes
from input_pipeline.tokenizers.settings import known_size
from pretrain import config as configs
from pretrain.errors import UserError, nearest
from pretrain.losses.objective import BoundModel
from pretrain.optimizers.transforms import EPOCH
from pretrain.step import recurrent_state
from pretrain.step.train_spec import TrainSpec

CHOICES = {"train.on_bad_step": ("skip", "rewind"), "evaluate.stopping": STOPPING}


def check_config(config) -> None:
    """Raise UserError or DataError where lengths, batch sizes and choices of a config contradict each other."""
    train, window = config.train, tuple(config.log.profile)
    for key, choices in CHOICES.items():
        section, name = key.split(".")
        if config[section][name] not in choices:
            raise UserError(
                f"config.{key}='{config[section][name]}' is unknown{nearest(config[section][name], choices)}"
            )
    if train.batch_size % train.accumulate:
        raise UserError(
            f"config.train.batch_size={train.batch_size} is not divisible by config.train.accumulate="
            f"{train.accumulate}. Change one of them."
        )
    if ramp := tuple(train.batch_ramp):
        first, increment, _ = ramp
        if first >= train.batch_size or (train.batch_size - first) % increment:
            raise UserError(
                f"config.train.batch_ramp={ramp}: misses config.train.batch_size={train.batch_size}. Choose a smaller "
                f"first size, and an increment that divides the difference."
            )
        if config.data.layout in validate.UNMIXED:
            raise UserError(
                f"config.train.batch_ramp={ramp}: not with config.data.layout={config.data.layout}. Leave it empty."
            )
        if config.optimizer.unfreeze == EPOCH:
            raise UserError(
                f"config.optimizer.unfreeze={EPOCH}: with config.train.batch_ramp epochs differ in updates. Give a "
                "number of updates."
            )
    # A trace that can never begin is a mistake; one that outlasts the run is cut short.
    if window and window[0] > train.steps:
        raise UserError(
            f"config.log.profile={window} begins after config.train.steps={train.steps}. Name earlier steps."
        )
    task, scored = corruption.build(config.objective.to_dict()), configs.scored_length(config)
    if config.evaluate.length:  # `input_pipeline.validate` checks data.length
        validate.check_length("config.evaluate.length", scored, task)
    validate.check_stride(config.evaluate.stride or scored, scored, config.data.layout, task)
    _check_context(config, "config.data.length", config.data.length, "config.model.context", config.model.context)
    check_scored(config)


def batch_sizes(config) -> BatchSizes:
    """Rows of each training batch of a config that `check_config` accepts."""
    return BatchSizes.build(config.train.batch_size, config.train.batch_ramp)


def check_scored(config, length: int = 0) -> None:
    """Raise UserError where rows of evaluation (of --length, where it is given) are longer than the context."""
    changed = config.evaluate.model.to_dict()
    key = "config.evaluate.model.context" if "context" in changed else "config.model.context"
    name, length = ("--length", length) if length else (configs.scored_key(config), configs.scored_length(config))
    _check_context(config, name, length, key, changed.get("context", config.model.context))


def _check_context(config, key: str, length: int, context_key: str, context: int) -> None:
    task = corruption.build(config.objective.to_dict())
    # Targets of spans grow with the density, and may be longer than their inputs.
    targets = task.target_length(length) if task.uses_text_pairs else 0
    if max(length, targets) > context:
        made = f" and config.objective.density make {targets} targets," if targets > max(length, context) else " is"
        raise UserError(f"{key}={length}{made} longer than {context_key}={context}. Change one of them.")


def check_model(model, config) -> None:
    """Raise UserError where the model does not fit the layout of the data or a tokenizer of known size."""
    sets = getattr(model, "groups", 0)
    if config.optimizer.layer_decay != 1 and 0 < sets < model.layers:
        raise UserError(
            f"config.optimizer.layer_decay={config.optimizer.layer_decay}: the {model.layers} layers share {sets} sets "
            "of parameters. Set it to 1."
        )
    # The shapes for one row show whether there is a memory at all.
    if recurrent_state.shapes(model, 1) and config.data.layout != "stream":
        raise UserError(f"config.data.layout={config.data.layout}: the model's memory needs rows in order. Set stream.")
    # Trained tokenizers have as many entries as asked for, so this can be checked before training one.
    special = corruption.special(config.objective.to_dict(), config.data.layout)
    entries = known_size(config.tokenizer.to_dict(), special)
    if entries is not None and not configs.takes_tokenizer(config):  # another run's tokenizer may have any size
        check_vocabulary(model, entries)


def check_vocabulary(model, entries: int) -> None:
    """Raise UserError where a tokenizer has more entries than the model has rows."""
    if entries > model.input_vocab_size:
        raise UserError(
            f"config.model.vocab_size={model.vocab_size} is below the tokenizer's {entries} entries. Set "
            f"--config.model.vocab_size={entries}."
        )


def check_mesh(spec: TrainSpec, config, training: bool) -> None:
    """Raise UserError or ModelError where evaluation, or `training`, cannot be split over the mesh."""
    # Attention is split by heads; other axes are checked with each parameter and feature.
    spec.layout.check("heads", config.model.heads, "config.model.heads")
    check_batches(spec.layout, spec, config, training)
    with spec.scope():
        check_attention(spec, config, training)


def check_attention(spec: TrainSpec, config, training: bool) -> None:
    """Raise ModelError where attention refuses the rows of evaluation, or of `training`, on the mesh in scope.

    The path `auto` always finds one that serves; only heads that are to be traded for tokens can be too few.
    """
    trades = jax.sharding.get_abstract_mesh().shape.get("sequence", 1) > 1
    uses = [(spec.eval_model, config.evaluate.batch_size, configs.scored_length(config), None)]
    if training:
        # The shape of a key: an abstract mesh has no device that could compute one.
        key, rows = jax.eval_shape(lambda: jax.random.key(0)), config.train.batch_size // config.train.accumulate
        uses.insert(0, (spec.model, rows, config.data.length, key))
    for model, rows, length, key in uses:
        if model.attention_path == "auto" and not trades:
            continue
        batch, carried = spec.batch_shapes(rows, length), recurrent_state.shapes(model, rows)

        def run(params, batch, carried, key, m=model):
            return BoundModel(m, params, spec.inputs)(batch, carried, key)

        jax.eval_shape(run, spec.param_shapes, batch, carried, key)


def check_batches(layout, spec: TrainSpec, config, training: bool) -> None:
    """Raise UserError where rows or lengths of evaluation, or of `training`, do not divide over a layout's mesh."""
    # Batches of evaluation are filled up with padding; those of training must divide.
    scored = configs.scored_length(config)
    uses = [(layout.filled(config.evaluate.batch_size), scored, configs.scored_key(config))]
    if training:
        rows = config.train.batch_size // config.train.accumulate
        layout.check("batch", rows, "config.train.batch_size / train.accumulate")
        for stage in batch_sizes(config)[:-1]:
            layout.check("batch", stage.size, "a batch of config.train.batch_ramp, of rows")
        uses.append((rows, config.data.length, "config.data.length"))
    for rows, length, key in uses:
        layout.check("length", length, key)
        for name, (shape, _, axes) in spec.features(rows, length).items():
            for axis, size in zip(axes, shape, strict=True):
                if axis == "length":  # of another size than `length` where the objective makes its own, as spans do
                    layout.check(axis, size, f"the length of '{name}' that {key}={length} and config.objective make")
            layout.batch(shape, axes)
