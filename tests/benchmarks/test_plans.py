"""A choice of recipes fits the hardware that it is meant for, none of which is there. docs/plan_table.py has all."""

import importlib.util

import pytest

from pretrain.plan import step, targets, topology

CHOICE = ("bert:base", "transformer_xl:wt103", "sparse_transformer:enwik8")

pytestmark = [pytest.mark.tpu_compile, pytest.mark.timeout(1800)]
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'"
)


@needs_libtpu
@pytest.mark.parametrize("recipe", CHOICE)
def test_a_recipe_fits_its_target(recipe):
    target = targets.TARGETS[recipe][0]
    facts = step.plan(target.config(recipe), topology.parse(target.topology))
    assert facts["memory"]["fits"] and facts["memory"]["left"] > 0
    assert 0 < facts["roofline"]["mfu"] < 1
    assert {row["kind"] for row in facts["collectives"] if row["axes"] == ["data"]} == {"all-reduce"}  # gradients


@needs_libtpu
def test_what_is_too_large_says_by_how_much():
    """The compiler refuses it; the plan says what it needs, and what would help."""
    target = targets.Target("v5e:2x2", data=4)
    facts = step.plan(target.config("gpt2:large"), topology.parse(target.topology))
    assert facts["memory"]["fits"] is False and facts["memory"]["left"] < 0
    assert facts["memory"]["capacity"] == round(15.75 * 2**30) and facts["collectives"] is None


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs JAX's CUDA plugin: pip install -e '.[cuda]'"
)
def test_gpus_that_are_not_there():
    target = targets.Target("h100:8", fsdp=8, parts=4)
    facts = step.plan(target.config("gpt2:small"), topology.parse(target.topology))
    assert facts["memory"]["fits"]
    kinds = {row["kind"] for row in facts["collectives"] if row["axes"] == ["fsdp"]}
    assert {"all-gather", "reduce-scatter"} <= kinds
