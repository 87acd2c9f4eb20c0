"""Checks of a config, first alone and then against the model and the mesh that were built from it."""

import jax

from configs.common import STOPPING
from input_pipeline import corruption, validate
from input_pipeline.tokenizers.settings import known_size
from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.losses.objective import BoundModel
from pretrain.step import recurrent_state
from pretrain.step.train_spec import TrainSpec

ON_BAD_STEP = ("skip", "rewind")


def check_config(config) -> None:
    """Raise UserError where lengths, batch sizes and choices of a config contradict each other."""
    train, data = config.train, config.data
    if train.batch_size % train.accumulate:
        raise UserError(
            f"config.train.batch_size={train.batch_size} is not divisible by config.train.accumulate="
            f"{train.accumulate}. Change one of them."
        )
    if data.length > config.model.context:
        raise UserError(
            f"config.data.length={data.length} is longer than config.model.context={config.model.context} positions. "
            "Lower the one or raise the other."
        )
    check_scored(config)
    _check_lengths(config)
    if train.on_bad_step not in ON_BAD_STEP:
        raise UserError(f"config.train.on_bad_step='{train.on_bad_step}'; choose one of: {', '.join(ON_BAD_STEP)}")
    # A trace that can never begin is a mistake; one that outlasts the run is cut short.
    window = tuple(config.log.profile)
    if window and window[0] > train.steps:
        raise UserError(
            f"config.log.profile={window} begins after the last step, config.train.steps={train.steps}. Name earlier "
            "steps, or leave it empty."
        )
    if config.evaluate.stopping not in STOPPING:
        raise UserError(f"config.evaluate.stopping='{config.evaluate.stopping}'; choose one of: {', '.join(STOPPING)}")


def _check_lengths(config) -> None:
    """Raise UserError or DataError for rows whose length the objective cannot use, in training or in evaluation."""
    objective, data = config.objective.to_dict(), config.data
    task, scored = corruption.build(objective), configs.scored_length(config)
    key, context = _scoring_context(config)
    # Evaluation may have another length and another context.
    for length_key, length, context_key, positions in (
        ("config.data.length", data.length, "config.model.context", config.model.context),
        (configs.scored_key(config), scored, key, context),
    ):
        validate.check_length(length_key, length, task)
        if task.uses_text_pairs and task.target_length(length) > positions:
            raise UserError(
                f"{length_key}={length} with config.objective.density={config.objective.density} makes targets of "
                f"{task.target_length(length)} tokens, longer than {context_key}={positions}. Lower {length_key} or "
                "the density."
            )
    validate.check_stride(config.evaluate.stride or scored, scored, data.layout, task)


def check_scored(config, length: int = 0) -> None:
    """Raise UserError where rows of evaluation (of --length, where it is given) are longer than the context."""
    key, context = _scoring_context(config)
    scored = length or configs.scored_length(config)
    if scored <= context:
        return
    if length:  # of `pretrain evaluate`: the model is trained, so only the option can change
        raise UserError(f"--length={length} is longer than {key}={context} positions. Lower it.")
    remedy = "Lower it (0 means config.data.length)." if config.evaluate.length else f"Set it to {context}."
    raise UserError(f"{configs.scored_key(config)}={scored} is longer than {key}={context} positions. {remedy}")


def _scoring_context(config) -> tuple[str, int]:
    """(key, value) of the context of the model that evaluates."""
    changed = config.evaluate.model.to_dict()
    if "context" in changed:
        return "config.evaluate.model.context", changed["context"]
    return "config.model.context", config.model.context


def check_model(model, config) -> None:
    """Raise UserError where the model does not fit the layout of the data or a tokenizer of known size."""
    # The shapes for one row show whether there is a memory at all.
    if recurrent_state.shapes(model, 1) and config.data.layout != "stream":
        raise UserError(
            f"config.data.layout='{config.data.layout}' has no order for the model's memory to follow. Set "
            "--config.data.layout=stream."
        )
    # Trained tokenizers have as many entries as asked for, so this can be checked before training one.
    special = corruption.special(config.objective.to_dict(), config.data.layout)
    entries = known_size(config.tokenizer.to_dict(), special)
    if entries is not None and not configs.takes_tokenizer(config):  # another run's tokenizer may have any size
        check_vocabulary(model, entries)


def check_vocabulary(model, entries: int) -> None:
    """Raise UserError where a tokenizer has more entries than the model has rows."""
    if entries > model.input_vocab_size:
        raise UserError(
            f"config.model.vocab_size={model.vocab_size} is smaller than the tokenizer's {entries} entries. Set "
            f"--config.model.vocab_size={entries} or use a smaller tokenizer."
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
    scored = configs.scored_length(config)
    _check_rows(layout, spec, layout.filled(config.evaluate.batch_size), scored, configs.scored_key(config))
    if training:
        rows = config.train.batch_size // config.train.accumulate
        layout.check("batch", rows, "config.train.batch_size / train.accumulate")
        _check_rows(layout, spec, rows, config.data.length, "config.data.length")


def _check_rows(layout, spec: TrainSpec, rows: int, length: int, key: str) -> None:
    layout.check("length", length, key)
    for name, (shape, _, axes) in spec.features(rows, length).items():
        for axis, size in zip(axes, shape, strict=True):
            if axis == "length":  # of another size than `length` where the objective makes its own, as spans do
                layout.check(axis, size, f"the length of '{name}' that {key}={length} and config.objective make")
        layout.batch(shape, axes)
