"""Hardware by name, and every way in which a name can be wrong."""

import importlib.util

import jax
import pytest

from pretrain.errors import UserError
from pretrain.plan import hardware, topology
from pretrain.plan.hardware import HARDWARE


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [("v5p:4x4x4", (4, 4, 4), 64), ("v5e:2x2", (2, 2), 4), ("h200:8", (8,), 8), ("cpu:8", (8,), 8)],
)
def test_names(name, shape, count):
    found = topology.parse(name)
    assert (found.shape, found.count, found.hardware) == (shape, count, HARDWARE[name.partition(":")[0]])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "v5q:4x4",
            "--topology=v5q:4x4 is of no hardware that is known; choose one like v4:4x4x8.*cpu:8, did you mean 'v5p'.$",
        ),
        ("V5E:2x2", "--topology=V5E:2x2 is of no hardware that is known; .*, did you mean 'v5e'.$"),
        ("H200:8", "did you mean 'h200'.$"),
        ("a100:8", "is of no hardware that is known.*v4:4x4x8, v5e:8x8, v5p:4x4x4, v6e:4x4, h100:8, h200:8, cpu:8"),
        ("v5p-128", "v5p-128 is the cloud's name of a slice; .* in chips after a colon, such as --topology=v5p:4x4x4"),
        ("v5litepod-8", "such as --topology=v5e:2x4"),
        ("v4-8", "such as --topology=v4:2x2x1"),
        ("v6e-7", "such as --topology=v6e:4x4"),
        ("v5e-2", "such as --topology=v5e:8x8"),
        ("v5e:4x2", "--topology=v5e:4x2 is no slice that Google rents; did you mean v5e:2x4.$"),
        ("v5p:4x2x2", "--topology=v5p:4x2x2 is no slice that Google rents; did you mean v5p:2x2x4.$"),
        ("v6e:3x5", "of v6e there are 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16$"),
        (
            "v5p:4x4x6",
            "of v5p there are 1x1x1, 2x1x1, 2x2x1, .*, 2x4x4, and those of three multiples of 4 in rising order",
        ),
        ("v4:1x1x1", "of v4 there are 2x2x1, 2x2x2, 2x2x4, 2x4x4, and those"),
        ("v5p:4x4", "is no shape of v5p; after the colon write three sizes, as in v5p:4x4x4"),
        ("v5e:4x4x4", "is no shape of v5e; after the colon write two sizes, as in v5e:8x8"),
        ("h100", "is no shape of h100; after the colon write a number of devices, at most 8, as in h100:8"),
        ("h200:16", "is no shape of h200; after the colon write a number of devices, at most 8, as in h200:8"),
        ("cpu:0", "is no shape of cpu"),
        ("v5e:999x9999", "is no shape of v5e"),
        ("cpu:9", "--topology=cpu:9 needs 9 devices and this process has begun with 8; set XLA_FLAGS=--xla_force"),
    ],
)
def test_names_that_are_wrong(name, words):
    assert len(jax.devices()) == 8  # JAX has begun
    with pytest.raises(UserError, match=words):
        topology.parse(name).devices()


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'")
@pytest.mark.parametrize(("name", "count"), [("v5e:1x1", 1), ("v6e:1x1", 1), ("v5p:1x1x1", 1), ("v5p:2x1x1", 2)])
def test_slices_of_less_than_a_host(name, count):
    assert len(topology.parse(name).devices()) == count


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "v5e:2x2",
            r"--topology=v5e:2x2: compiling for TPUs needs libtpu, which is not installed; pip install -e '.\[plan\]'",
        ),
        (
            "h100:8",
            r"--topology=h100:8: compiling for NVIDIA GPUs needs JAX's CUDA plugin, .*; pip install -e '.\[cuda\]'",
        ),
    ],
)
def test_compilers_that_are_not_installed(monkeypatch, name, words):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=words):
        topology.parse(name).devices()


def test_every_kind_has_an_example_and_every_gpu_a_description():
    assert HARDWARE.keys() == topology.EXAMPLES.keys()
    assert {name for name, kind in HARDWARE.items() if kind.platform == "cuda"} == hardware.TARGETS.keys()
    for name, kind in HARDWARE.items():
        assert topology.parse(topology.EXAMPLES[name]).hardware is kind
        rates = kind.memory, kind.flops, kind.bandwidth, kind.link
        assert all(rates) or (name == "cpu" and not any(rates))
