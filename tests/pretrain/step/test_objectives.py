"""An update of each family is one update: terms with denominators of their own, dropout on, split in every way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from updates import BATCH, LENGTH, MODELS, assert_same_run, first_state, ragged, small, two_updates

from configs import common
from pretrain import losses
from pretrain.errors import UserError
from pretrain.losses.applied import Applied
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
    terms = losses.reported(spec.objective, jax.tree.map(float, metrics["sums"]), counts)
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
        sums, _ = spec.objective.score(Applied(spec.model, params, spec.inputs), batch, {}, None)
        return sums, spec.objective.denominators(batch)

    sums, counts = jax.eval_shape(score, initial(kind).params)
    assert sums.keys() == counts.keys() == spec.objective.terms.keys()
    assert seen == {*spec.objective.reads, *spec.inputs, "row"} <= features.keys()


def test_causal_prediction_is_not_for_a_model_that_sees_both_sides():
    config = small("masked")
    config.objective = common.causal()
    with pytest.raises(
        UserError, match=r"objective\.kind = causal .*model\.kind = encoder, sees more; choose another kind of either"
    ):
        TrainSpec.build_abstract(config)


def test_a_decoder_that_sees_both_sides_is_for_masked_prediction_alone():
    config = small("masked")
    config.model = common.decoder()
    config.objective.next_sentence = False
    config.data.layout = "concat"
    with pytest.raises(UserError, match=r"choose an encoder or set config\.model\.bidirectional of a decoder"):
        TrainSpec.build_abstract(config)
    config.model.bidirectional = True
    assert TrainSpec.build_abstract(config).inputs == ("tokens", "positions", "segments")
    config.objective.next_sentence = True
    with pytest.raises(UserError, match=r"next_sentence = true needs a head .* of kind decoder has none"):
        TrainSpec.build_abstract(config)
    config.objective = common.causal()
    with pytest.raises(UserError, match=r"causal .* sees more; .*model\.bidirectional of a decoder to false"):
        TrainSpec.build_abstract(config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__reuse": 4}, r"model\.reuse = 4 positions .*objective\.reuse = 8; make them the same"),
        ({"train__batch_size": 7}, r"train\.batch_size = 7 lanes cannot be halved .*; make it even, or set"),
        ({"train__z_loss": 0.1}, r"train\.z_loss = 0\.1 is not for config\.objective\.kind = permutation; set it to 0"),
    ],
)
def test_what_an_order_does_not_go_with(changes, words):
    with pytest.raises(UserError, match=words):
        TrainSpec.build_abstract(small("permutation", **changes))


@pytest.mark.parametrize("kind", ["encoder", "recurrent", "decoder"])
def test_an_order_needs_a_model_that_takes_it(kind):
    config = small("permutation")
    config.model = getattr(common, kind)()
    with pytest.raises(UserError, match=rf"permutation .*model\.kind = {kind} does not take; choose two_stream"):
        TrainSpec.build_abstract(config)


@pytest.mark.parametrize("task", ["causal", "masked", "spans"])
def test_two_streams_and_memory_are_for_no_other_task(task):
    config = small("permutation")
    config.objective = common.OBJECTIVES[task]()
    with pytest.raises(UserError, match=rf"objective\.kind = {task} .* two_stream"):
        TrainSpec.build_abstract(config)


def test_pairs_need_the_head_that_tells_them_apart():
    with pytest.raises(
        UserError, match=r"next_sentence = true needs a head .* or config\.model\.pair_head of an encoder to true"
    ):
        TrainSpec.build_abstract(small("masked", model__pair_head=False))
    assert (
        "nsp"
        not in TrainSpec.build_abstract(
            small("masked", model__pair_head=False, objective__next_sentence=False)
        ).objective.terms
    )


def test_pairs_need_a_row_of_the_type_table_for_each_text():
    with pytest.raises(
        UserError, match=r"next_sentence = true .*model\.types = 1 has one row .*--config\.model\.types=2"
    ):
        TrainSpec.build_abstract(small("masked", model__types=1))
    TrainSpec.build_abstract(small("masked", model__types=1, objective__next_sentence=False))
