"""From a config to what a train step is made of."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

import models
from pretrain.errors import UserError
from pretrain.step import optimizers
from pretrain.step.step import Recipe, forward, init_memory, init_params


def make_recipe(config) -> Recipe:
    """Model, optimiser and loss of a config."""
    model = models.build(config.architecture, config.model.to_dict())
    for key in ("z_loss", "label_smoothing"):
        if config.train[key] and getattr(model, "cutoffs", ()):
            raise UserError(
                f"config.train.{key} = {config.train[key]} acts on one softmax over the whole vocabulary, and "
                f"config.model.cutoffs = {model.cutoffs} makes several; set config.train.{key} to 0 or drop the cutoffs"
            )
    return Recipe(
        model=model,
        evaluated=_evaluated(config, model),
        segmented=config.data.layout == "packed",
        optimizer=optimizers.build(config.optimizer, config.schedule, config.train.steps),
        rate=optimizers.schedule(config.schedule, config.train.steps),
        accumulate=config.train.accumulate,
        z_loss=config.train.z_loss,
        label_smoothing=config.train.label_smoothing,
    )


def check_attention(recipe: Recipe, config, training: bool) -> None:
    """Raises ModelError where attention refuses the rows of evaluation, or of `training`, on the mesh in scope.

    The path `auto` always finds one that serves, so that only heads which are to be traded for tokens can be too few.
    """
    trades = jax.sharding.get_abstract_mesh().shape.get("sequence", 1) > 1
    train, length = config.train.batch_size // config.train.accumulate, config.data.length
    evaluate = config.evaluate.batch_size, config.evaluate.length or length
    key = jax.random.key(0)
    uses = [(recipe.model, (train, length), key), (recipe.evaluated, evaluate, None)]
    for model, shape, rng in uses if training else uses[1:]:
        if model.attention_path == "auto" and not trades:
            continue
        names = {"tokens": jnp.int32, "positions": jnp.int32, "segments": jnp.int32}
        batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in names.items()}
        batch["reset"] = jax.ShapeDtypeStruct(shape[:1], bool)
        initial = lambda m=model, s=shape: (nn.unbox(init_params(m, key, 1)), init_memory(m, s[0]))  # noqa: E731
        params, memory = jax.eval_shape(initial)
        run = partial(forward, dataclasses.replace(recipe, model=model), rng=rng)
        jax.eval_shape(run, params, batch, memory)


def _evaluated(config, model):
    """The model as evaluation runs it: with the fields of config.evaluate.model, on the same parameters."""
    changes = config.evaluate.model.to_dict()
    if not changes:
        return model
    evaluated = models.build(config.architecture, config.model.to_dict() | changes)
    trained, needed = (
        jax.eval_shape(lambda key, m=m: init_params(m, key, 1), jax.random.key(0)) for m in (model, evaluated)
    )
    if trained != needed:
        raise UserError(
            f"config.evaluate.model changes the shapes of parameters by one of {', '.join(changes)}; evaluation runs "
            "on the trained ones, so change only fields without, such as memory"
        )
    return evaluated
