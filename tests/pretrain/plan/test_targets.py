"""Every published size of every recipe has a target, whose mesh divides its batch over its devices."""

import pytest
from every_recipe import EVERY

from pretrain.plan import topology
from pretrain.plan.targets import LIKE, TARGETS

OF_MINUTES = {"tiny", "mini_stdlib", "tiny_images", "bert_tiny", "t5_tiny"}  # for the machine at hand
PUBLISHED = {f"{name}:{variant}" for name, variant in EVERY if variant not in OF_MINUTES} | {"bert:tiny"}


def test_every_published_size_has_one():
    assert TARGETS.keys() | LIKE.keys() == PUBLISHED
    assert not TARGETS.keys() & LIKE.keys() and set(LIKE.values()) <= TARGETS.keys()


@pytest.mark.parametrize("recipe", TARGETS)
def test_its_mesh_divides(recipe):
    for target in TARGETS[recipe]:
        config = target.config(recipe)
        count = topology.parse(target.topology).count
        assert target.data * target.fsdp * target.tensor == count
        rows, left = divmod(config.train.batch_size, target.parts * target.data * target.fsdp)
        assert rows >= 1 and left == 0, f"{rows} rows and {left} left over"
        assert config.model.heads % target.tensor == 0 and config.train.accumulate == target.parts
        if config.model.kind in ("recurrent", "two_stream"):
            assert config.train.batch_size % (target.data * target.fsdp) == 0  # lanes
