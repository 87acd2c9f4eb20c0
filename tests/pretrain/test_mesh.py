"""Meshes on pods that are not there: any product of sizes that fits, and a word where it may be slow."""

import itertools
import math
from dataclasses import dataclass

import pytest

from configs.common import base
from pretrain.mesh import make_mesh


@dataclass(frozen=True)
class Chip:
    """What JAX looks at of a TPU when it lays a mesh out."""

    id: int
    coords: tuple[int, ...]
    core_on_chip: int = 0
    device_kind: str = "TPU v5"
    platform: str = "tpu"
    process_index: int = 0
    slice_index: int = 0


def pod(*shape):
    return [Chip(number, place) for number, place in enumerate(itertools.product(*map(range, shape)))]


@pytest.mark.parametrize(
    ("shape", "sizes", "slow"),
    [
        ((4, 4, 4), {"fsdp": 16, "sequence": 2, "tensor": 2}, True),
        ((8, 8, 8), {"fsdp": 128, "tensor": 4}, True),
        ((4, 4, 4), {"fsdp": 16, "tensor": 4}, False),
        ((4, 4, 4), {"data": -1}, False),
        ((2, 2, 3), {"fsdp": 6, "tensor": 2}, False),
    ],
)
def test_any_product_that_fits(shape, sizes, slow):
    said = []
    mesh = make_mesh(base().mesh.to_dict() | {"data": 1} | sizes, pod(*shape), said.append)
    assert mesh.size == math.prod(shape) == len(set(mesh.devices.flat))
    assert all(mesh.shape[axis] == size for axis, size in sizes.items() if size > 0)
    assert len(said) == slow
    if slow:
        axes = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        assert f"({axes}) splits the physical axes of a {'x'.join(map(str, shape))} pod" in said[0]
