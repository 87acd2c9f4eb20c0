"""What a forward pass keeps for the backward pass."""

import jax
import pytest

from pretrain.config import load
from pretrain.plan.memory import Kept, kept_of_row
from pretrain.step.train_spec import TrainSpec


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
