"""What a step holds, whether that fits, and what would mend it; and what a real run holds."""

import jax
import pytest

from pretrain.config import load
from pretrain.plan import memory, step
from pretrain.plan.memory import Kept, kept_of_row
from pretrain.plan.topology import parse
from pretrain.step.train_spec import TrainSpec

STATED = {
    "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 33.42G of 15.75G hbm. Exceeded": (
        33.42 * 2**30,
        15.75 * 2**30,
    ),
    "TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, exceeding available bytes: 95.74G": (
        34.82 * 2**30,
        95.74 * 2**30,
    ),
    "the total memory required for HLO temporaries (512M) exceeds available HBM (1T). HLO module: jit_f.": (
        512 * 2**20,
        2**40,
    ),
}


@pytest.mark.parametrize("message", STATED)
def test_a_compilers_refusal_is_read(message):
    assert memory.stated(f"RESOURCE_EXHAUSTED: {message}") == STATED[message]


def test_other_refusals_are_not():
    assert memory.stated("INVALID_ARGUMENT: shapes do not match") is None


def test_categories_add_up_to_what_the_compiler_reports():
    shapes = {
        "parameters": 100,
        "optimiser state": 200,
        "teacher": 0,
        "memory of lanes": 5,
        "batch": 1,
        "gradients": 90,
    }
    found = memory.Compiled(argument=310, output=310, alias=305, temporary=150, generated_code=7)
    rows = memory.categories(shapes, found, kept=40.2)
    assert sum(rows.values()) == found.needed == 472
    assert (rows["gradients"], rows["activations"], rows["temporaries"], rows["other"]) == (90, 40, 20, 16)
    few = memory.categories(shapes, memory.Compiled(310, 310, 305, 50, 7), kept=40)
    assert (few["gradients"], few["activations"], few["temporaries"]) == (50, 0, 0)  # used up as they are made
    refused = memory.estimated(shapes, 500, kept=60)
    assert (refused["activations"], refused["temporaries"], refused["other"]) == (60, 44, 0)


@pytest.mark.parametrize(
    ("argument", "teacher", "batch"), [(348, 40, 3), (336, 28, 3), (306, 0, 1), (300, 0, 0)], ids=str
)
def test_what_a_step_does_not_read_is_left_out(argument, teacher, batch):
    """A student's teacher has heads that teach it nothing: they are no part of the batch, which is not below 0."""
    of_shapes = {"parameters": 100, "optimiser state": 200, "teacher": 40, "memory of lanes": 5, "batch": 3}
    found = memory.Compiled(argument, output=305, alias=305, temporary=90, generated_code=7)
    rows = memory.categories(of_shapes | {"gradients": 90}, found, kept=0)
    assert (rows["teacher"], rows["batch"]) == (teacher, batch) and sum(rows.values()) == found.needed


MESH = {"data": 4, "fsdp": 2, "sequence": 1, "tensor": 1}
HALVES = {"activations": 70, "parameters": 30}


@pytest.mark.parametrize(
    ("rows", "mesh", "changes", "most", "words"),
    [
        (HALVES, {}, {}, memory.WORK, "raise config.train.accumulate to 4"),
        (HALVES, {"fsdp": 4}, {"train.batch_size": 8000, "train.accumulate": 20}, memory.WORK, "to 100"),
        (HALVES | {"parameters": 49}, {}, {"train.batch_size": 64}, memory.WORK, "to 8 and set --config.model.remat="),
        (HALVES, {}, {"train.batch_size": 8}, memory.WORK, "set --config.model.remat=full"),
        (HALVES, {}, {"train.batch_size": 8, "model.remat": "full"}, memory.WORK, "config.mesh.sequence"),
        # Everything else is too much, in however many parts.
        (HALVES | {"parameters": 200, "activations": 900}, {}, {}, memory.WORK, "--config.mesh.fsdp=8"),
        (HALVES | {"memory of lanes": 60}, {}, {}, memory.WORK, "config.model.memory"),
        ({"activations": 10, "optimiser state": 90}, {}, {}, "optimiser state", "--config.mesh.data=1"),
        ({"activations": 10, "parameters": 90}, {"data": 1}, {}, "parameters", "take 4 devices"),
        ({"teacher": 90}, {}, {}, "teacher", "config.distill.teacher"),
    ],
)
def test_remedy(rows, mesh, changes, most, words):
    config = load("configs/gpt2.py:small", [(key, str(value)) for key, value in changes.items()])
    found, share, what = memory.remedy(rows, config, MESH | mesh, 60)
    assert found == most and words in what
    assert share == sum(size for name, size in rows.items() if name in most)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], [("mesh.fsdp", "4"), ("train.accumulate", "2"), ("model.remat", "full")]])
def test_predicted_bytes_are_those_of_a_real_run(overrides):
    """On CPU devices: what is given to the step is known to the byte, and what it takes besides is XLA's own figure."""
    config = load("configs/quickstart.py:tiny", [("train.batch_size", "16"), *overrides])
    spec = step.prepare(config, parse("cpu:8"))
    facts = step.plan(config, parse("cpu:8"))
    size = config.train.batch_size
    state = spec.init(config.seed, size)
    features = spec.features(size, config.data.length)
    batch = spec.put({name: jax.numpy.zeros(one.shape, one.dtype) for name, one in features.items()}, size)
    first = jax.devices()[0]
    given = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves((state, batch))
        for shard in leaf.addressable_shards
        if shard.device == first
    )
    rows = facts["memory"]["categories"]
    assert sum(rows[name] for name in memory.GIVEN) == pytest.approx(given, abs=64)  # step, rng and counters
    assert facts["memory"]["compiler"]["argument"] == pytest.approx(given, rel=0.01)


def of_row(layers: int, remat: str) -> Kept:
    config = load("configs/quickstart.py:tiny", [("model.layers", str(layers)), ("model.remat", remat)])
    return kept_of_row(config, TrainSpec.build_abstract(config), jax.devices())


@pytest.mark.parametrize("remat", ["full", "dots"])
def test_a_layer_that_is_made_again_keeps_what_it_is_given(remat):
    config = load("configs/quickstart.py:tiny")
    given = config.data.length * config.model.width * 4
    more = of_row(3, remat).whole - of_row(2, remat).whole
    assert more == given if remat == "full" else more > given


def test_what_is_split_where():
    kept = Kept(whole=64, split=128)
    assert kept.on_device({"data": 2, "fsdp": 2, "sequence": 1, "tensor": 4}) == 24
    assert kept.on_device({"data": 1, "fsdp": 1, "sequence": 2, "tensor": 1}) == 96
