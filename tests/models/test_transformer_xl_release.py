"""The same numbers as the authors' PyTorch code: losses, memory, every gradient, and its training loop.

The answers in goldens/transformer_xl.json are the release's own; goldens/make_transformer_xl.py says how it was asked.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from goldens import make_transformer_xl as asked

import models
from configs import common
from pretrain.losses.causal import Causal
from pretrain.losses.objective import BoundModel
from pretrain.optimizers.schedules import schedule
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import init_state, train_step

ANSWERS = json.loads(asked.ANSWERS.read_text())
CAUSAL = Causal(predicted=None, z_loss=0.0, label_smoothing=0.0, bits_metric="bits_per_byte")


def answers(name):
    """{what: numbers} of a case."""
    return {key.removeprefix(f"{name}: "): np.array(x) for key, x in ANSWERS.items() if key.startswith(f"{name}: ")}


def params_of(weights):
    return unflatten_dict({path: jnp.asarray(x) for path, x in weights.items()}, sep="/")


def batches(text, length):
    """An epoch of text [lanes, rows * length + 1]."""
    for start in range(0, text.shape[1] - 1, length):
        tokens, targets = (text[:, begin : begin + length] for begin in (start, start + 1))
        ones = np.ones_like(tokens)
        batch = {"tokens": tokens, "targets": targets, "positions": ones, "segments": ones}
        batch |= {"row": np.arange(len(text)), "reset": np.full(len(text), start == 0)}
        yield batch | {"weights": ones.astype(np.float32)}


def close(ours, theirs, tolerance=1e-5):
    """Digests differ by no more than `tolerance` of the length of what they stand for, which is their first number."""
    ours, theirs = np.reshape(ours, (-1, 8)), np.reshape(theirs, (-1, 8))
    np.testing.assert_allclose(ours / theirs[:, :1], theirs / theirs[:, :1], rtol=0, atol=tolerance)


def nll(model, params, tokens, targets, carried):
    """(the loss of each token, what the lanes carry on)."""
    output = model.apply(params, tokens, carried=carried)
    log_probs = jax.nn.log_softmax(model.apply(params, output.hidden, method="logits"))
    return -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0], output.carried


def section(fields, dtype="float32"):
    """The model section of a config."""
    model = common.recurrent()
    model.update(fields, dtype=dtype, dropout=0.0)
    return model


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (index % 3 > 0)) for index, name in enumerate(asked.CASES)]
)
def test_losses_memory_and_gradients(name):
    """Four segments of three lanes, with memory, in each of the release's options."""
    fields, expected = asked.sizes(asked.CASES[name]), answers(name)
    model = models.build(section(fields).to_dict())
    params = {"params": params_of(asked.weights(fields))}
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)

    @jax.jit
    def segment(params, carried, tokens, targets, weights):
        def objective(params):
            batch = {"tokens": tokens, "targets": targets, "weights": weights, "row": jnp.arange(len(tokens))}
            terms, carried_on = CAUSAL.score(BoundModel(model, params["params"], ("tokens",)), batch, carried, None)
            return terms["loss"], carried_on

        gradient, carried_on = jax.grad(objective, has_aux=True)(params)
        return gradient, (nll(model, params, tokens, targets, carried)[0], carried_on)

    text, carried = asked.text(asked.LANES, asked.SEGMENTS * asked.LENGTH), nn.unbox(model.init_memory(asked.LANES))
    counts = np.split(asked.token_weights(), asked.SEGMENTS, axis=1)
    gradient, losses, remembered = jax.tree.map(jnp.zeros_like, params), [], []
    for batch, weights in zip(batches(text, asked.LENGTH), counts, strict=True):
        added, (loss, carried) = segment(params, carried, batch["tokens"], batch["targets"], weights)
        gradient = jax.tree.map(jnp.add, gradient, added)
        losses.append(loss)
        memory = carried["attention"]
        held = int(memory.held[0])
        remembered += asked.digest(memory.hidden[:, :, fields["memory"] - held :])

    np.testing.assert_allclose(np.ravel(losses), expected.pop("losses"), rtol=1e-5)
    close(remembered, expected.pop("memory"))
    for path, x in flatten_dict(gradient["params"], sep="/").items():
        close(asked.digest(x), expected.pop(f"gradient of {path}"))
    assert not expected


def trained(name):
    """The config of a training loop, and the release's answers to it."""
    changes, warmup = asked.UPDATES[name]
    config = common.base()
    config.model = section(asked.sizes(changes))
    config.data.layout = "stream"
    config.train.update(steps=2 * asked.EPOCH, batch_size=asked.LANES)
    config.evaluate.model.update(memory=config.model.memory + asked.LENGTH - asked.EVALUATED_LENGTH)
    config.optimizer.update(name="adamw", b1=0.9, b2=0.999, epsilon=1e-8, weight_decay=0.0, clip=0.25)
    config.schedule.update(kind="cosine", peak=asked.RATE, warmup=warmup, end=0.0, beneath_warmup=True)
    return config, answers(f"{name}, trained")


@pytest.mark.parametrize("name", [name for name, (_, warmup) in asked.UPDATES.items() if not warmup])
def test_twenty_updates_of_its_training_loop(name):
    """Adam, clipping, a cosine, an epoch's end; then its evaluation, whose rows are shorter and memory is longer."""
    config, expected = trained(name)
    spec, began = TrainSpec.build_abstract(config), asked.weights(config.model)
    state = jax.jit(lambda params: init_state(spec, 0, asked.LANES).replace(params=params))(params_of(began))
    step, losses, rates = jax.jit(lambda state, batch: train_step(spec, state, batch)), [], []
    for _ in range(2):
        for batch in batches(asked.text(asked.LANES, asked.EPOCH * asked.LENGTH), asked.LENGTH):
            state, metrics = step(state, batch)
            losses.append(metrics["sums"]["loss"] / metrics["counts"]["loss"])
            rates.append(metrics["learning_rate"])
    np.testing.assert_allclose(losses, expected.pop("losses"), rtol=1e-5)
    np.testing.assert_allclose(rates, expected.pop("rates"), rtol=1e-5)
    for path, x in flatten_dict(state.params, sep="/").items():
        moved = asked.digest(asked.settled(path, x - began[path]))
        # Twenty roundings, each of a whole parameter: the release's own float32 is 3e-5 away from its float64.
        close(moved, expected.pop(f"moved {path}"), tolerance=1e-4)

    @jax.jit
    def score(params, carried, batch):
        model = BoundModel(spec.eval_model, params, spec.inputs)
        terms, carried = CAUSAL.score(model, batch, carried, None)
        return terms["loss"] / batch["weights"].sum(), carried

    carried, losses = nn.unbox(spec.eval_model.init_memory(asked.EVALUATION_LANES)), []
    for batch in batches(asked.validation(), asked.EVALUATED_LENGTH):
        loss, carried = score(state.params, carried, batch)
        losses.append(loss)
    np.testing.assert_allclose(losses, expected.pop("evaluation"), rtol=1e-5)
    assert not expected


def test_its_warm_up_is_an_update_late_and_its_first_update_at_the_full_rate():
    config, expected = trained("warmed up")
    theirs, warmup = expected["rates"], config.schedule.warmup
    ours = schedule(config.schedule, config.train.steps)(np.arange(2 * asked.EPOCH))
    np.testing.assert_allclose(theirs, [asked.RATE, *ours[: warmup - 1], *ours[warmup:]], rtol=1e-5)
