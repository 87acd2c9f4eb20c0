"""Along which directions of a pod a mesh axis runs, and the shardings that a gradient goes through there."""

import jax
import pytest
from chips import Chip
from jax.sharding import PartitionSpec

from configs.common import base
from pretrain.parallel.mesh import make_mesh
from pretrain.parallel.reduce_scatter import GradientSteps, directions


def line(*places):
    return [Chip(number, place) for number, place in enumerate(places)]


@pytest.mark.parametrize(
    ("devices", "sizes"),
    [
        (line((0, 0)), ()),
        (line((0, 0), (0, 1), (0, 2)), (3,)),
        (line((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)), (2, 3)),
        (line((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)), (2, 3)),
        (line(*((i, j, k) for i in range(2) for k in range(3) for j in range(4))), (2, 3, 4)),
        (line((0, 0), (0, 1), (1, 1), (1, 0)), (2, 2)),  # around a square
        (line((0, 0), (1, 1), (2, 2)), (3,)),
        (jax.devices()[:6], (6,)),  # which have no places
    ],
)
def test_directions_of_devices(devices, sizes):
    assert directions(devices) == sizes


def mesh(**sizes):
    chips = [Chip(8 * i + j, (i, j, 0)) for i in range(8) for j in range(8)]
    return make_mesh(base().mesh.to_dict() | {"data": 1} | sizes, chips)


def test_gradient_steps():
    first, last = GradientSteps(mesh(fsdp=64)).to(PartitionSpec(None, "fsdp"), (3, 128))
    assert first.spec == PartitionSpec(None, ("fsdp_0",)) and first.mesh.shape["fsdp_0"] == 8
    assert last.spec == PartitionSpec(None, "fsdp")
    assert list(first.mesh.devices.flat) == list(last.mesh.devices.flat)


def test_gradient_steps_keep_other_axes():
    spec = PartitionSpec("tensor", ("data", "fsdp"))
    assert [step.spec for step in GradientSteps(mesh(fsdp=8, tensor=8)).to(spec, (8, 8))] == [spec]
    first, last = GradientSteps(mesh(data=4, fsdp=16)).to(spec, (8, 64))
    assert (first.spec, last.spec) == (PartitionSpec(("tensor",), ("data", "fsdp_0")), spec)


def test_gradient_steps_of_uneven_axis():
    steps = GradientSteps(mesh(fsdp=64))
    assert steps.to(PartitionSpec(None, None), (128, 128)) == []
    (only,) = steps.to(PartitionSpec("fsdp"), (67,))
    assert only.spec == PartitionSpec("fsdp")
