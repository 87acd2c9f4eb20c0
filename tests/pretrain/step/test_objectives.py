"""An update of each family is one update: terms with denominators of their own, dropout on, split in every way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import BATCH, LENGTH, MODELS, assert_same_run, first_state, ragged, small, two_updates

from pretrain import losses
from pretrain.losses.objective import BoundModel
from pretrain.step.train_spec import TrainSpec


@functools.cache
def initial(kind):
    return first_state(small(kind))


def run(config, devices):
    return two_updates(config, devices, initial(config.objective.kind))


@functools.cache
def reference(kind):
    return run(small(kind), 1)


MESHES = {
    "tensor": ({"mesh__data": 2, "mesh__tensor": 4}, 8),
    "mixed": ({"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}, 8),
    "sequence": ({"mesh__data": 2, "mesh__sequence": 2}, 4),
    "sequence and tensor": ({"mesh__data": 2, "mesh__sequence": 2, "mesh__tensor": 2}, 8),
    "accumulated fsdp": ({"mesh__fsdp": 4, "train__accumulate": 2}, 4),
    "accumulated pmap": ({"train__backend": "pmap", "train__accumulate": 2}, 4),
}
SHOWN = {("masked", "accumulated fsdp")}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if (kind, name) in SHOWN else pytest.mark.slow)
        for kind in MODELS
        for name in MESHES
    ],
)
def test_one_update_is_one_update(kind, name):
    changes, devices = MESHES[name]
    assert_same_run(run(small(kind, **changes), devices), reference(kind))


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "nothing masked"])
def test_the_gradient_is_that_of_the_sum_of_the_means(masked):
    """By JAX, of all logits at once: mean nll of the masked tokens, if there are any, and mean nll of the pairs."""
    config = small("masked", model__dropout=0.0, model__dropout_attention=0.0)
    spec = TrainSpec.build_abstract(config)
    batch = ragged(spec, 0)
    batch["weights"] *= masked
    before = initial("masked").params

    def loss(params):
        model = spec.model.bind({"params": params})
        hidden = model(**{name: batch[name] for name in spec.inputs}).hidden
        states, table, bias = model.head_inputs(hidden)
        log_probs = jax.nn.log_softmax(states @ table.T + bias[None, None])
        rows = np.arange(BATCH)
        at_slots = log_probs[rows[:, None], batch["slots"], batch["targets"]]
        pairs = jax.nn.log_softmax(model.pair_logits(hidden))[rows, batch["next"]]
        weights, next_weights = batch["weights"], batch["next_weights"]
        return -(weights * at_slots).sum() / max(weights.sum(), 1) - (next_weights * pairs).sum() / next_weights.sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(before)
    spec = TrainSpec.build(config, jax.devices()[:1])
    shapes = spec.checkpoint_shapes(BATCH)
    state = spec.from_checkpoint(jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), initial("masked"), shapes))
    state, metrics = spec.train_step(state, spec.put(batch, BATCH))
    counts = {name: float(count) for name, count in metrics["counts"].items()}
    assert counts["mlm"] == batch["weights"].sum() != counts["nsp"] == batch["next_weights"].sum()
    terms = losses.compute_terms(spec.objective, jax.tree.map(float, metrics["sums"]), counts)
    assert terms["loss"] == pytest.approx(float(value), rel=1e-5) and terms["loss"] == terms["mlm"] + terms["nsp"]
    for old, new, g in zip(*map(jax.tree.leaves, (before, spec.to_checkpoint(state).params, gradient)), strict=True):
        np.testing.assert_allclose(old - np.asarray(new), g, atol=2e-6)


@pytest.mark.slow
def test_tokens_read_are_those_of_both_sides():
    batch = ragged(TrainSpec.build_abstract(small("spans")), 0)
    read = reference("spans")[0][0, -1]
    assert read == sum((batch[name] > 0).sum() for name in ("segments", "input_segments"))


@pytest.mark.parametrize("kind", MODELS)
def test_the_two_halves_of_an_objective_fit(kind):
    """A scorer reads nothing that its corruption does not declare; and the model neither."""
    spec = TrainSpec.build_abstract(small(kind))
    features, seen = spec.features(2, LENGTH), set()

    class Watched(dict):
        def __getitem__(self, name):
            seen.add(name)
            return super().__getitem__(name)

    def score(params):
        batch = Watched({name: jnp.zeros(feature.shape, feature.dtype) for name, feature in features.items()})
        sums, _ = spec.objective.score(BoundModel(spec.model, params, spec.inputs), batch, {}, None)
        return sums, spec.objective.denominators(batch)

    sums, counts = jax.eval_shape(score, initial(kind).params)
    assert sums.keys() == counts.keys() == spec.objective.terms.keys()
    assert seen == {*spec.objective.batch_features, *spec.inputs, "row"} <= features.keys()
