"""Sums of terms with denominators of their own: one update, on one device or eight, in one part or many."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from smallest_models import VOCABULARY, Mixing, Translating

from configs import common
from input_pipeline import objectives as corruptions
from input_pipeline.features import declared, empty
from pretrain import objectives, optimizers
from pretrain.objectives.applied import Applied
from pretrain.optimizers.roles import roles
from pretrain.step.engine import make_engine
from pretrain.step.step import Learner, parameters_of

BATCH, LENGTH = 8, 16
# Plain gradient descent at rate 1: what parameters change by is the gradient itself, every leaf of it.
KEYS = {
    "optimizer.name": "sgd",
    "optimizer.b1": 0.0,
    "optimizer.clip": 0.0,
    "schedule.kind": "constant",
    "schedule.warmup": 0,
    "schedule.peak": 1.0,
    "mesh.data": 1,
    "model.heads": 8,
}
MODELS = {"masked": Mixing(), "spans": Translating()}


def small(kind, **changes):
    config = common.base()
    config.objective = common.OBJECTIVES[kind]()
    config.data.length = LENGTH
    config.objective.update({"max_predictions": 5} if kind == "masked" else {"density": 0.3, "mean_span": 2.0})
    for key, value in (KEYS | {name.replace("__", "."): value for name, value in changes.items()}).items():
        config.update_from_flattened_dict({key: value})
    return config


def learner_of(config):
    model = MODELS[config.objective.kind]
    parameters = parameters_of(model)
    first_half = corruptions.build(config.objective.to_dict())
    return Learner(
        model=model,
        evaluated=model,
        parameters=parameters,
        inputs=model.inputs,
        features=lambda rows, length: declared(first_half, rows, length, "concat"),
        objective=objectives.build(config, model),
        optimizer=optimizers.build(config.optimizer, config.schedule, 10, roles(parameters)),
        rate=optimizers.schedule(config.schedule, 10),
        accumulate=config.train.accumulate,
    )


def ragged(learner, seed):
    """A batch whose rows differ in length, in what they score, and in whether they are pairs at all."""
    draw = np.random.default_rng(seed)
    batch = empty(learner.features(BATCH, LENGTH)) | {"row": np.arange(BATCH, dtype=np.int32)}
    for name, array in batch.items():
        if name.endswith("segments"):
            array[:] = np.arange(array.shape[1]) < draw.integers(1, array.shape[1] + 1, BATCH)[:, None]
        elif name in ("types", "next"):
            array[:] = draw.integers(0, 2, array.shape)
        elif name == "slots":
            array[:] = draw.integers(0, LENGTH, array.shape)
        elif name.endswith("positions"):
            array[:] = np.arange(array.shape[1])
        elif name == "weights":
            array[:] = np.arange(array.shape[1]) < draw.integers(0, array.shape[1] + 1, BATCH)[:, None]
        elif name == "next_weights":
            array[:] = np.arange(BATCH) % 3 > 0
        elif name != "row":
            array[:] = draw.integers(0, VOCABULARY, array.shape)
    return batch


@functools.cache
def initial(kind):
    config = small(kind)
    return jax.tree.map(np.asarray, make_engine(learner_of(config), config, jax.devices()[:1]).init(0, BATCH))


def run(config, devices):
    """(every term and the gradients' norm of two updates, final parameters)."""
    learner = learner_of(config)
    engine = make_engine(learner, config, jax.devices()[:devices])
    shapes = engine.shapes(0, BATCH)
    start = jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), initial(config.objective.kind), shapes)
    state, history = engine.restored(start), []
    for n in range(2):
        state, metrics = engine.step(state, engine.put(ragged(learner, n), BATCH))
        sums, counts = ({name: float(v) for name, v in metrics[which].items()} for which in ("sums", "counts"))
        terms = objectives.reported(learner.objective, sums, counts)
        history.append([*(terms[name] for name in sorted(terms)), float(metrics["grad_norm"]), float(metrics["read"])])
    return np.array(history), jax.tree.map(np.asarray, engine.saved(state).params)


@functools.cache
def reference(kind):
    return run(small(kind), 1)


MESHES = {
    "data": {"mesh__data": 8},
    "fsdp": {"mesh__fsdp": 8},
    "tensor": {"mesh__data": 2, "mesh__tensor": 4},
    "mixed": {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2},
    "sequence": {"mesh__data": 4, "mesh__sequence": 2},
    "pmap": {"train__backend": "pmap"},
    "accumulated pmap": {"train__backend": "pmap", "train__accumulate": 2},
    "two parts": {"train__accumulate": 2},
    "eight parts": {"train__accumulate": 8},
}
DEVICES = {"accumulated pmap": 4, "two parts": 1, "eight parts": 1}


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("kind", MODELS)
def test_one_update_is_one_update(kind, name):
    history, params = run(small(kind, **MESHES[name]), DEVICES.get(name, 8))
    np.testing.assert_allclose(history, reference(kind)[0], rtol=2e-5)  # float32, sums in another order
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(reference(kind)[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # entries near 1, after gradients near 1


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "nothing masked"])
def test_the_gradient_is_that_of_the_sum_of_the_means(masked):
    """By JAX, of all logits at once: mean nll of the masked tokens, if there are any, and mean nll of the pairs."""
    config = small("masked")
    learner = learner_of(config)
    batch = ragged(learner, 0)
    batch["weights"] *= masked
    before = initial("masked").params

    def loss(params):
        model = Mixing().bind({"params": params})
        hidden = model(**{name: batch[name] for name in Mixing.inputs}).hidden
        states, table, bias = model.head_inputs(hidden)
        log_probs = jax.nn.log_softmax(states @ table.T + bias[None, None])
        rows = np.arange(BATCH)
        at_slots = log_probs[rows[:, None], batch["slots"], batch["targets"]]
        pairs = jax.nn.log_softmax(model.pair_logits(hidden))[rows, batch["next"]]
        weights, next_weights = batch["weights"], batch["next_weights"]
        return -(weights * at_slots).sum() / max(weights.sum(), 1) - (next_weights * pairs).sum() / next_weights.sum()

    value, gradient = jax.value_and_grad(loss)(before)
    engine = make_engine(learner, config, jax.devices()[:1])
    shapes = engine.shapes(0, BATCH)
    state = engine.restored(jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), initial("masked"), shapes))
    state, metrics = engine.step(state, engine.put(batch, BATCH))
    counts = {name: float(count) for name, count in metrics["counts"].items()}
    assert counts["mlm"] == batch["weights"].sum() != counts["nsp"] == batch["next_weights"].sum()
    terms = objectives.reported(learner.objective, jax.tree.map(float, metrics["sums"]), counts)
    assert terms["loss"] == pytest.approx(float(value), rel=1e-5) and terms["loss"] == terms["mlm"] + terms["nsp"]
    for old, new, g in zip(*map(jax.tree.leaves, (before, engine.saved(state).params, gradient)), strict=True):
        np.testing.assert_allclose(old - np.asarray(new), g, atol=2e-6)


def test_tokens_read_are_those_of_both_sides():
    config = small("spans")
    learner = learner_of(config)
    batch = ragged(learner, 0)
    engine = make_engine(learner, config, jax.devices()[:1])
    _, metrics = engine.step(engine.init(0, BATCH), engine.put(batch, BATCH))
    assert int(metrics["read"]) == batch["segments"].sum() + batch["input_segments"].sum()
    assert float(metrics["counts"]["loss"]) == batch["weights"].sum()


@pytest.mark.parametrize("kind", MODELS)
def test_the_two_halves_of_an_objective_fit(kind):
    """A scorer reads nothing that its corruption does not declare; and the model neither."""
    learner = learner_of(small(kind))
    features, seen = learner.features(2, LENGTH), set()

    class Watched(dict):
        def __getitem__(self, name):
            seen.add(name)
            return super().__getitem__(name)

    def score(params):
        batch = Watched({name: jnp.zeros(feature.shape, feature.dtype) for name, feature in features.items()})
        sums, _ = learner.objective.score(Applied(MODELS[kind], params, learner.inputs), batch, {}, None)
        return sums, learner.objective.denominators(batch)

    sums, counts = jax.eval_shape(score, initial(kind).params)
    assert sums.keys() == counts.keys() == learner.objective.terms.keys()
    assert seen == {*learner.objective.reads, *learner.inputs, "row"} <= features.keys()
