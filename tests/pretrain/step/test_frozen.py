"""Frozen parameters: nothing of them changes, is differentiated or has optimizer state."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from runs import mostly
from updates import BATCH, GRADIENT, LENGTH, ragged_batch, small_config

from pretrain.costs.capacity import whole_bytes
from pretrain.errors import UserError
from pretrain.optimizers import OPTIMIZERS
from pretrain.optimizers.freezing import Partition
from pretrain.plan.memory import state_bytes
from pretrain.step.train_spec import TrainSpec

PATTERNS = ("tokens", "positions", "layers/*", "!layers/*_norm")  # leaves the norms of the layers, and the last one
WAYS = {
    "jit": (1, {}),
    "accumulated": (1, {"train__accumulate": 2}),
    "unrolled": (1, {"model__scan": False}),
    "mesh": (8, {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}),
    "pmap": (2, {"train__backend": "pmap"}),
}


def is_trained(name):
    return "norm" in name


def flat(tree):
    return flatten_dict(jax.tree.map(np.asarray, tree), sep="/")


def one_update(devices, **changes):
    """(parameters before, after, metrics) of an update of a seed's parameters."""
    spec = TrainSpec.build(small_config(**changes), jax.devices()[:devices])
    state = spec.init(0, BATCH)
    before = flat(spec.to_checkpoint(state).params)
    state, metrics = spec.train_step(state, spec.put(ragged_batch(), BATCH))
    return before, flat(spec.to_checkpoint(state).params), metrics


@pytest.fixture(scope="module")
def plain():
    """The gradient of every parameter."""
    before, after, _ = one_update(1, **GRADIENT)
    return {name: before[name] - after[name] for name in before}


@pytest.mark.parametrize("way", mostly(WAYS, "unrolled", "mesh"))
def test_update_of_trained_part_alone(way, plain):
    devices, changes = WAYS[way]
    norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for name, g in plain.items() if is_trained(name)))
    clip = norm / 3  # a third of the norm of the trained part; of all gradients it would be another share
    changes = GRADIENT | {"optimizer__frozen": PATTERNS, "optimizer__clip": float(clip)} | changes
    before, after, metrics = one_update(devices, **changes)
    assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-5)
    for name in before:
        if is_trained(name):
            np.testing.assert_allclose(before[name] - after[name], plain[name] / 3, atol=2e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)


def test_frozen_bytes():
    """AdamW has 8 bytes for each trained number, and two counts; nothing is held for the others."""
    one = small_config(optimizer__frozen=PATTERNS, model__width=64)
    spec, whole = (
        TrainSpec.build(one, jax.devices()[:1]),
        TrainSpec.build(small_config(model__width=64), jax.devices()[:1]),
    )
    norms = 4 * (2 * 2 * 2 * 64 + 2 * 64)  # gains and biases of two norms in two layers, and of the last
    shapes = spec.checkpoint_shapes(BATCH)
    assert whole_bytes(shapes.opt_state) == 2 * norms + 8
    assert state_bytes(spec, one)["gradients"] == norms
    lowered, full = (each.lower_train_step(BATCH, LENGTH).compile().memory_analysis() for each in (spec, whole))
    gradients = whole_bytes(spec.param_shapes) - norms
    assert full.temp_size_in_bytes - lowered.temp_size_in_bytes > 0.8 * gradients
    assert full.argument_size_in_bytes - lowered.argument_size_in_bytes == 2 * gradients


@pytest.mark.parametrize("name", mostly(OPTIMIZERS, "sgd", "adagrad", "lion", "adafactor", "adamw"))
def test_optimizers_of_a_part(name):
    """Also where no stacked parameter is left to them."""
    for patterns in (PATTERNS, ("*", "!final_norm", "!tokens")):
        before, after, metrics = one_update(1, optimizer__name=name, optimizer__frozen=patterns)
        moved = {path for path in before if (before[path] != after[path]).any()}
        assert moved == {
            path
            for path in before
            if (is_trained(path) if patterns == PATTERNS else path in ("tokens", "final_norm/scale", "final_norm/bias"))
        }
        assert float(metrics["grad_norm"]) > 0


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (("layrs",), "'layers'"),
        (("tokens", "layers/atention/*"), "layers/attention/"),
        (("*",), "no parameter is left"),
    ],
)
def test_patterns_that_fit_nothing(patterns, words):
    with pytest.raises(UserError, match=r"config\.optimizer\.frozen") as error:
        Partition.build(patterns, TrainSpec.build_abstract(small_config()).parameters)
    assert words in str(error.value)


def test_lora_trains_its_own_matrices_alone():
    """A's gradient is 0 while B is; both learn after the first update, and the base never does."""
    lora = {"model__lora": 2, "model__lora_targets": ("query", "in"), "model__tied_head": False}
    spec = TrainSpec.build(small_config(**GRADIENT | lora | {"schedule__peak": 10.0}), jax.devices()[:1])
    assert whole_bytes(spec.partition.trained(spec.param_shapes)) == 4 * 2 * 2 * (32 + 4 * 8 + 32 + 64)
    state, moved = spec.init(0, BATCH), []
    for n in range(2):
        before = flat(state.params)
        state, _ = spec.train_step(state, spec.put(ragged_batch(n), BATCH))
        moved.append({name for name, leaf in flat(state.params).items() if (leaf != before[name]).any()})
    b = {"layers/attention/query/lora_b", "layers/feed_forward/in/lora_b"}
    assert moved == [b, b | {name.replace("_b", "_a") for name in b}]


def test_adapters_train_with_norms():
    spec = TrainSpec.build_abstract(small_config(model__adapter=4))
    trained = flatten_dict(spec.partition.trained(spec.param_shapes), sep="/")
    assert trained and all("_adapter/" in name or "norm" in name for name in trained)
    norms, adapters = 2 * 2 * 2 * 32 + 2 * 32, 2 * 2 * (2 * 32 * 4 + 32 + 4)
    assert sum(leaf.size for leaf in trained.values()) == norms + adapters
    one = TrainSpec.build_abstract(small_config(model__adapter=4, optimizer__frozen=("tokens",)))
    assert one.partition.frozen == {"tokens"}  # the user's patterns instead of the default


@pytest.mark.slow
@pytest.mark.parametrize("way", ["accumulated", "unrolled", "mesh", "pmap"])
def test_lora_and_adapters_learn_alike_on_every_mesh(way):
    devices, changes = WAYS[way]
    model = {"model__lora": 4, "model__lora_targets": ("query", "output", "out"), "model__adapter": 8}
    model |= GRADIENT | {"optimizer__layer_decay": 0.5}
    _, one, _ = one_update(1, **model)
    before, other, _ = one_update(devices, **model | changes)
    moved = {name for name in one if (one[name] != before[name]).any()}
    assert {"layers/attention/output/lora_b", "layers/feed_forward_adapter/up/kernel"} <= moved
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=3e-6, err_msg=name)
