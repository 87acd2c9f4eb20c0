"""An update of layers that share parameters, and of tokens that have languages, is one update however it is split."""

import functools

import jax
import pytest
from updates import LENGTH, assert_same_run, first_state, ragged, small, two_updates

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
MASKED = {"mlm", "mlm_accuracy"}
TERMS = {"albert": MASKED | {"sop", "sop_accuracy"}, "xlm": MASKED, "roberta": MASKED}
MESHES = {
    "mixed": ({"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}, 8),
    "sequence": ({"mesh__data": 2, "mesh__sequence": 2}, 4),
    "accumulated pmap": ({"train__backend": "pmap", "train__accumulate": 2}, 4),
}
FIRST = "mixed"  # which alone is tried by default


def batch_of(spec, seed):
    """A ragged batch, of two languages where they are told."""
    batch = ragged(spec, seed)
    if "languages" in batch:
        batch["languages"] %= 2
    return batch


@functools.cache
def initial(family):
    return first_state(small("masked", **FAMILIES[family]))


def run(family, devices, **changes):
    return two_updates(small("masked", **FAMILIES[family], **changes), devices, initial(family), batch_of)


@functools.cache
def reference(family):
    return run(family, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "mesh"),
    [
        pytest.param(family, mesh, marks=() if (family, mesh) == ("albert", FIRST) else pytest.mark.slow)
        for family in FAMILIES
        for mesh in MESHES
    ],
)
def test_one_update_is_one_update(family, mesh):
    changes, devices = MESHES[mesh]
    assert_same_run(run(family, devices, **changes), reference(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_two_halves_fit(family):
    spec = TrainSpec.build_abstract(small("masked", **FAMILIES[family]))
    features, seen = spec.features(2, LENGTH), set()

    class Watched(dict):
        def __getitem__(self, name):
            seen.add(name)
            return super().__getitem__(name)

    def score(params):
        batch = Watched({name: jax.numpy.zeros(feature.shape, feature.dtype) for name, feature in features.items()})
        sums, _ = spec.objective.score(BoundModel(spec.model, params, spec.inputs), batch, {}, None)
        return sums, spec.objective.denominators(batch)

    sums, counts = jax.eval_shape(score, spec.param_shapes)
    assert sums.keys() == counts.keys() == spec.objective.terms.keys() == TERMS[family]
    assert seen == {*spec.objective.batch_features, *spec.inputs, "row"} <= features.keys()
