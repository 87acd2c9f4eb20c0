"""Hardware by name, and names that are wrong."""

import importlib.util

import jax
import pytest

from pretrain.errors import UserError
from pretrain.plan import topology
from pretrain.plan.topology import HARDWARE


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("v5q:4x4", "'v5p'"),
        ("H200:8", "'h200'"),
        ("v5p-128", "v5p:4x4x4"),
        ("v5e:4x2", "2x4"),
        ("v5p:4x4x6", "2x2x1"),
        ("v5p:4x4", "2x4x4"),
        ("h200:16", "at most 8"),
        ("cpu:0", "cpu"),
    ],
)
def test_wrong_topology_is_named_with_a_hint(name, hint):
    assert len(jax.devices()) == 8  # initialised before a topology of CPUs is made
    with pytest.raises(UserError, match=hint):
        topology.parse(name).devices()


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'")
@pytest.mark.parametrize(("name", "count"), [("v5e:1x1", 1), ("v6e:1x1", 1), ("v5p:1x1x1", 1), ("v5p:2x1x1", 2)])
def test_slices_of_less_than_a_host(name, count):
    assert len(topology.parse(name).devices()) == count


def test_every_kind_has_an_example_and_every_gpu_a_description():
    assert {name for name, kind in HARDWARE.items() if kind.platform == "cuda"} == topology.DESCRIPTIONS.keys()
    for name, kind in HARDWARE.items():
        found = topology.parse(f"{name}:{kind.example}")
        assert found.hardware is kind and "x".join(map(str, found.shape)) == kind.example
        rates = kind.memory, kind.flops, kind.bandwidth, kind.link
        assert all(rates) or (name == "cpu" and not any(rates))
