"""Every published size has a target, whose mesh divides its batch; what the table shows is of the recipe as it is."""

import json
import re
from pathlib import Path

import pytest
from every_recipe import EVERY

from pretrain.plan import topology
from pretrain.plan.targets import LIKE, TARGETS, fingerprint

DOCS = Path(__file__).resolve().parents[3] / "docs"
FIGURES = json.loads((DOCS / "figures" / "plan.json").read_text())
SHOWN = re.findall(r"^\| `(\S+)` \| `(\S+)` \|", (DOCS / "plan.md").read_text(), re.MULTILINE)

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


def test_the_table_shows_each_once():
    assert [(recipe, target.topology) for recipe, several in TARGETS.items() for target in several] == SHOWN


@pytest.mark.parametrize(("recipe", "name"), SHOWN)
def test_what_the_table_shows_is_of_the_recipe_as_it_is(recipe, name):
    """And fits: docs/plan_table.py wrote down what its step takes, with a fingerprint of the config."""
    (target,) = [target for target in TARGETS[recipe] if target.topology == name]
    found = FIGURES[f"{recipe} {name}"]
    assert found["fingerprint"] == fingerprint(target.config(recipe)), f"python docs/plan_table.py {recipe}"
    assert found["memory"]["fits"] and found["memory"]["needed"] <= found["memory"]["capacity"]
