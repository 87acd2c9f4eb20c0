"""From a config to what a train step is made of."""

import jax

import models
from input_pipeline import corruption as corruptions
from input_pipeline.batch_spec import declared
from models.errors import ModelError
from pretrain import config as configs
from pretrain import losses, optimizers
from pretrain.errors import UserError
from pretrain.losses.applied import Applied
from pretrain.optimizers.roles import roles
from pretrain.optimizers.schedules import schedule
from pretrain.step import recurrent_state
from pretrain.step.train_step import Learner, parameters_of


def make_learner(config) -> Learner:
    """Model, optimiser and loss of a config."""
    model = models.build(config.model.to_dict())
    parameters = parameters_of(model)
    features, objective = _features(config), losses.build(config, model)
    return Learner(
        model=model,
        evaluated=_evaluated(config, model, parameters),
        parameters=parameters,
        inputs=_inputs(config, model, features),
        features=features,
        objective=objective,
        optimizer=optimizers.build(config.optimizer, config.schedule, config.train.steps, roles(parameters)),
        rate=schedule(config.schedule, config.train.steps),
        accumulate=config.train.accumulate,
        frozen={} if objective.teacher is None else parameters_of(objective.teacher),
    )


def _features(config):
    """The features of a batch, as a function of its rows and their length."""
    first_half = corruptions.build(config.objective.to_dict())
    return lambda batch_size, length: declared(first_half, batch_size, length, config.data.layout)


def _inputs(config, model, features) -> tuple[str, ...]:
    """The features that the model is given: those that it takes, of those that there are.

    Where rows are no more than one document each, whose padding comes last, a causal model needs no segments; and
    kernels that know none, such as cuDNN's, can serve.
    """
    known = features(1, config.data.length).keys()
    needless = {"segments"} if model.causal and config.data.layout != "packed" else set()
    return tuple(name for name in model.inputs if name in known - needless)


def check_attention(learner: Learner, config, training: bool) -> None:
    """Raises ModelError where attention refuses the rows of evaluation, or of `training`, on the mesh in scope.

    The path `auto` always finds one that serves, so that only heads which are to be traded for tokens can be too few.
    """
    trades = jax.sharding.get_abstract_mesh().shape.get("sequence", 1) > 1
    train = config.train.batch_size // config.train.accumulate, config.data.length
    evaluate = config.evaluate.batch_size, configs.scored_length(config)
    key = jax.eval_shape(lambda: jax.random.key(0))  # a shape: where the mesh is of absent devices nothing is computed
    uses = [(learner.model, train, key), (learner.evaluated, evaluate, None)]
    for model, shape, rng in uses if training else uses[1:]:
        if model.attention_path == "auto" and not trades:
            continue
        batch, carried = learner.batch_shapes(*shape), recurrent_state.shapes(model, shape[0])

        def run(params, batch, carried, key, m=model):
            return Applied(m, params, learner.inputs)(batch, carried, key)

        jax.eval_shape(run, learner.shapes, batch, carried, rng)


def _evaluated(config, model, parameters):
    """The model as evaluation runs it: with the fields of config.evaluate.model, on the same parameters."""
    changes = config.evaluate.model.to_dict()
    if not changes:
        return model
    try:
        evaluated = models.build(config.model.to_dict() | changes)
    except ModelError as error:
        raise ModelError(f"with config.evaluate.model: {error}") from None
    if parameters_of(evaluated) != parameters:
        section = config.model.to_dict()
        alone = [name for name, value in changes.items() if _differs(section | {name: value}, parameters)]
        raise UserError(
            f"config.evaluate.model changes the shapes of parameters by {', '.join(alone or changes)}; evaluation runs "
            "on the trained ones, so change only fields that have none, such as how long a memory is"
        )
    return evaluated


def _differs(section, parameters) -> bool:
    """Whether a `model` section has other parameters, as far as there is such a model."""
    try:
        return parameters_of(models.build(section)) != parameters
    except ModelError:
        return False
