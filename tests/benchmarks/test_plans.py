"""Every recipe fits its target hardware, which is absent. docs/plan_table.py lists them."""

import importlib.util
import json
from pathlib import Path

import pytest

from pretrain.plan import step, targets, topology

FIGURES = json.loads((Path(__file__).resolve().parents[2] / "docs" / "figures" / "plan.json").read_text())
TARGETS = [f"{recipe} {target.topology}" for recipe, meant in targets.TARGETS.items() for target in meant]

pytestmark = [pytest.mark.tpu_compile, pytest.mark.timeout(1800)]
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'"
)
needs_cuda = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs JAX's CUDA plugin: pip install -e '.[cuda]'"
)


def of_target(name):
    """Parameter of a target; all but one are slow: together they take two hours on two cores."""
    tpu = topology.parse(name.split()[1]).hardware.platform == "tpu"
    later = [] if name == "bert:large v5e:2x2" else [pytest.mark.slow]
    return pytest.param(name, marks=[needs_libtpu if tpu else needs_cuda, *later])


@pytest.mark.parametrize("name", [of_target(name) for name in TARGETS])
def test_recipe_fits_its_target(name):
    """Memory is within 5 % of docs/plan.md, since libtpu versions differ."""
    recipe, place = name.split()
    (target,) = [target for target in targets.TARGETS[recipe] if target.topology == place]
    facts, figures = step.plan(target.config(recipe), topology.parse(place)), FIGURES[name]
    assert facts["memory"]["fits"] and facts["memory"]["left"] > 0
    assert facts["memory"]["needed"] == pytest.approx(figures["memory"]["needed"], rel=0.05)
    assert 0 < facts["roofline"]["mfu"] == pytest.approx(figures["roofline"]["mfu"], rel=0.1)
    if target.data == topology.parse(place).count:
        assert {row["kind"] for row in facts["collectives"] if row["axes"] == ["data"]} == {"all-reduce"}  # gradients


@needs_libtpu
def test_plan_of_a_too_large_model():
    """The compiler refuses it; the plan still reports memory."""
    target = targets.Target("v5e:2x2", data=4)
    facts = step.plan(target.config("gpt2:large"), topology.parse(target.topology))
    assert facts["memory"]["fits"] is False and facts["memory"]["left"] < 0
    assert facts["memory"]["capacity"] == round(15.75 * 2**30) and facts["collectives"] is None


@needs_cuda
def test_plan_for_absent_gpus():
    target = targets.Target("h100:8", fsdp=8, parts=4)
    facts = step.plan(target.config("gpt2:small"), topology.parse(target.topology))
    assert facts["memory"]["fits"]
    kinds = {row["kind"] for row in facts["collectives"] if row["axes"] == ["fsdp"]}
    assert {"all-gather", "reduce-scatter"} <= kinds
