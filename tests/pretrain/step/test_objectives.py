"""Every objective and encoder family: one update is the same on one device, on a mesh, under pmap and in parts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import BATCH, LENGTH, MODELS, assert_same_run, first_state, ragged, small, two_updates

from pretrain import losses
from pretrain.losses.objective import BoundModel
from pretrain.step.train_spec import TrainSpec

ALBERT = {"model__layers": 2, "model__groups": 1, "model__embed": 16, "model__project_always": True}
ALBERT |= {"objective__whole_words": True, "objective__ngrams": 3, "objective__swapped_pairs": True}
XLM = {"model__types": 0, "model__languages": 3, "model__pair_head": False, "model__head_transform": False}
XLM |= {"model__zero_padding": True, "model__initialiser": "fan_in", "objective__next_sentence": False}
XLM |= {"objective__languages": True, "data__languages": ("en", "fr"), "data__layout": "concat", "data__sentences": ""}
ROBERTA = {"model__types": 1, "model__position_offset": 2, "model__pair_head": False, "model__initialiser": "normal"}
ROBERTA |= {"objective__next_sentence": False, "objective__rounding": "random", "objective__candidates": "any"}
ROBERTA |= {"data__layout": "sentences"}
FAMILIES = {"albert": ALBERT, "xlm": XLM, "roberta": ROBERTA}
# Negatives are the rows of a whole batch. At a scale of 20 plain gradient descent would go far.
RANKING = {"objective__loss": "ranking", "objective__labels": (), "objective__scale": 5.0}
RANKING |= {"objective__metrics": ("retrieval",), "objective__selects": "loss"}
CASES = {kind: (kind, {}) for kind in MODELS} | {name: ("masked", keys) for name, keys in FAMILIES.items()}
CASES |= {"ranking": ("siamese", RANKING), "joint": ("extraction", {"objective__joint": True})}
MESHES = {
    "tensor": ({"mesh__data": 2, "mesh__tensor": 4}, 8),
    "mixed": ({"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}, 8),
    "sequence": ({"mesh__data": 2, "mesh__sequence": 2}, 4),
    "sequence and tensor": ({"mesh__data": 2, "mesh__sequence": 2, "mesh__tensor": 2}, 8),
    "accumulated fsdp": ({"mesh__fsdp": 4, "train__accumulate": 2}, 4),
    "accumulated pmap": ({"train__backend": "pmap", "train__accumulate": 2}, 4),
}
ACCUMULATED = [mesh for mesh in MESHES if mesh.startswith("accumulated")]
WHOLE = {"data": ({"mesh__data": 8}, 8), "fsdp": ({"mesh__fsdp": 4}, 4), "pmap": ({"train__backend": "pmap"}, 8)}
MESHES_OF = dict.fromkeys(CASES, MESHES)
MESHES_OF["ranking"] = WHOLE | {mesh: MESHES[mesh] for mesh in MESHES if mesh not in ACCUMULATED}
FAST = {("masked", "accumulated fsdp"), ("ranking", "data"), ("ranking", "pmap")}


def config_of(case, **changes):
    kind, keys = CASES[case]
    return small(kind, **keys | changes)


def batch_of(spec, seed):
    """A ragged batch, of two languages where there are any."""
    batch = ragged(spec, seed)
    if "languages" in batch:
        batch["languages"] %= 2
    return batch


@functools.cache
def initial(case):
    return first_state(config_of(case))


@functools.cache
def reference(case):
    return two_updates(config_of(case), 1, initial(case), batch_of)


@pytest.mark.parametrize(
    ("case", "mesh"),
    [
        pytest.param(case, mesh, marks=() if (case, mesh) in FAST else pytest.mark.slow)
        for case in CASES
        for mesh in MESHES_OF[case]
    ],
)
def test_update_on_mesh(case, mesh):
    changes, devices = MESHES_OF[case][mesh]
    result = two_updates(config_of(case, **changes), devices, initial(case), batch_of)
    assert_same_run(result, reference(case))


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "nothing masked"])
def test_gradient_is_that_of_the_sum_of_means(masked):
    """Against JAX's gradient of all logits: mean nll of the masked tokens, if any, and mean nll of the pairs."""
    spec = TrainSpec.build(small("masked", model__dropout=0.0, model__dropout_attention=0.0), jax.devices()[:1])
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
    shapes = spec.checkpoint_shapes(BATCH)
    state = spec.from_checkpoint(jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), initial("masked"), shapes))
    state, metrics = spec.train_step(state, spec.put(batch, BATCH))
    counts = {name: float(count) for name, count in metrics["counts"].items()}
    assert counts["mlm"] == batch["weights"].sum() != counts["nsp"] == batch["next_weights"].sum()
    terms = losses.compute_terms(spec.objective, jax.tree.map(float, metrics["sums"]), counts)
    assert terms["loss"] == pytest.approx(float(value), rel=1e-5) and terms["loss"] == terms["mlm"] + terms["nsp"]
    for old, new, g in zip(*map(jax.tree.leaves, (before, spec.to_checkpoint(state).params, gradient)), strict=True):
        np.testing.assert_allclose(old - np.asarray(new), g, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_objective_reads_the_features_that_its_corruption_declares(case):
    spec = TrainSpec.build_abstract(config_of(case))
    features, seen = spec.features(2, LENGTH), set()

    class Watched(dict):
        def __getitem__(self, name):
            seen.add(name)
            return super().__getitem__(name)

    def score(params):
        batch = Watched({name: jnp.zeros(feature.shape, feature.dtype) for name, feature in features.items()})
        sums, _ = spec.objective.score(BoundModel(spec.model, params, spec.inputs), batch, {}, None)
        return sums, spec.objective.denominators(batch)

    sums, counts = jax.eval_shape(score, spec.param_shapes)
    assert sums.keys() == counts.keys() == spec.objective.terms.keys()
    derived = {*spec.objective.derived_inputs} & {*spec.inputs}
    declared = {*spec.objective.batch_features, *spec.inputs, "row"} - derived
    assert declared <= features.keys() and (seen <= declared if derived else seen == declared)
