"""What devices tell each other in a step, read off the program that is compiled for eight of them."""

import pytest
from updates import BATCH, small_config

from configs import common
from pretrain.plan import hlo
from pretrain.plan.collectives import collectives
from pretrain.step.train_spec import TrainSpec

VOCABULARY, LENGTH, LAYERS = 8209, 128, 3  # a prime, of which 512 rows of logits are made at a time; half of the batch
WIDTH, FF = 32, 128


def found(**mesh):
    """The collectives of a step in float32, whose layers are in a loop and computed again in the backward pass."""
    config = small_config(**{f"mesh__{axis}": size for axis, size in mesh.items()})
    config.model.update(vocab_size=VOCABULARY, context=LENGTH, layers=LAYERS, width=WIDTH, ff=FF, remat="full")
    config.data.length = LENGTH
    return of_step(config)


def of_step(config):
    spec = TrainSpec.build(config)
    program = spec.lower_train_step(BATCH, LENGTH).compile()
    return collectives(hlo.read(program.as_text()), dict(spec.mesh.shape))


@pytest.mark.parametrize("mesh", [{"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=str)
def test_vocabulary_collectives_are_outside_loops(mesh):
    all_of_them = found(**mesh)
    table = VOCABULARY * WIDTH * 4 // mesh.get("tensor", 1)
    assert max(one.bytes for one in all_of_them if one.times == 1) >= table  # read rightly
    often = [one for one in all_of_them if one.times > 1]
    assert {one.times for one in often} == {LAYERS}
    assert max(one.bytes for one in often) < table / 4
    logits = BATCH * LENGTH * VOCABULARY * 4 // mesh.get("tensor", 1)
    assert max(one.bytes for one in all_of_them) < logits / 4


def test_adaptive_softmax_is_reduced_once():
    """Of its tables, which were all-reduced with every chunk of 256 of the batch's tokens."""
    config = small_config(mesh__data=8)
    config.model = common.recurrent()
    config.model.update(vocab_size=VOCABULARY, cutoffs=(1000, 4000), layers=LAYERS, width=WIDTH, heads=4, ff=FF)
    config.model.update(context=LENGTH, memory=LENGTH)
    config.data.update(layout="stream", length=LENGTH)
    all_of_them = of_step(config)
    assert max(one.bytes for one in all_of_them) >= 4000 * WIDTH * 2  # read rightly
    assert {one.times for one in all_of_them} <= {1, LAYERS}
    assert sum(one.bytes * one.times for one in all_of_them) < 4 * VOCABULARY * WIDTH * 4


def test_kernels_are_gathered_twice():
    gathered = [one for one in found(fsdp=8) if one.kind == "all-gather" and one.times == LAYERS]
    kernels = [one for one in gathered if one.bytes >= WIDTH * WIDTH * 4]
    assert len(kernels) == 2 * 6  # query, key, value, output; and two of feed-forward


@pytest.mark.parametrize("mesh", [{"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=str)
def test_embedded_tokens_are_not_gathered(mesh):
    embedded = [one for one in found(**mesh) if "_embed" in one.source]
    assert "all-to-all" in {one.kind for one in embedded}
    gathered = [one.bytes for one in embedded if one.kind == "all-gather"]
    assert max(gathered, default=0) < BATCH * LENGTH * WIDTH * 4
