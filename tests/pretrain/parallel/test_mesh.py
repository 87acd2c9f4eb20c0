"""Meshes on absent pods, and shardings of parameters on abstract meshes."""

import itertools
import math

import jax
import pytest
from chips import Chip

from configs.common import base
from pretrain.errors import UserError
from pretrain.parallel.mesh import AXES, Layout, make_mesh


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
def test_make_mesh_of_pod(shape, sizes, slow):
    said = []
    mesh = make_mesh(base().mesh.to_dict() | {"data": 1} | sizes, pod(*shape), said.append)
    assert mesh.size == math.prod(shape) == len(set(mesh.devices.flat))
    assert all(mesh.shape[axis] == size for axis, size in sizes.items() if size > 0)
    assert len(said) == slow


def layout(sizes, rules=None):
    mesh = jax.sharding.AbstractMesh(tuple(sizes.get(axis, 1) for axis in AXES), AXES)
    return Layout(mesh, base().mesh.rules if rules is None else rules)


FSDP = [
    # names, shape, mesh, partition: the largest axis that divides and that no rule has taken, and never the layers.
    (("vocab", "embed"), (512, 64), {"fsdp": 8}, ("fsdp", None)),
    (("vocab", "embed"), (257, 64), {"fsdp": 8}, (None, "fsdp")),
    (("vocab", "embed"), (512, 64), {"fsdp": 4, "tensor": 2}, ("tensor", "fsdp")),
    (("layers", "embed", "ff"), (16, 410, 2100), {"fsdp": 4}, (None, None, "fsdp")),
    (("layers", "embed", "ff"), (16, 410, 2100), {"fsdp": 8}, (None, None, None)),
    (("layers", "embed", "ff"), (16, 410, 2100), {"fsdp": 5, "tensor": 2}, (None, "fsdp", "tensor")),
    (("layers", "embed"), (16, 410), {"fsdp": 2}, (None, "fsdp")),
    (("vocab", None), (20_000, 51), {"fsdp": 8}, ("fsdp", None)),
    (("vocab", "embed"), (67, 30), {"fsdp": 4}, ("fsdp", None)),  # padded, as no axis divides
    (("vocab", "embed"), (67, 30), {"fsdp": 4, "tensor": 2}, ("tensor", None)),
]


@pytest.mark.parametrize(("names", "shape", "sizes", "expected"), FSDP)
def test_fsdp_splits_largest_axis(names, shape, sizes, expected):
    assert tuple(layout(sizes).parameter("name", names, shape)) == expected


def test_fsdp_follows_rules():
    rules = [(name, "fsdp" if name == "layers" else axes) for name, axes in base().mesh.rules]
    split = layout({"fsdp": 4}, rules).parameter("name", ("layers", "embed", "ff"), (16, 64, 256))
    assert tuple(split) == ("fsdp", None, None)


def test_size_that_does_not_divide():
    with pytest.raises(UserError):
        layout({"tensor": 4}).parameter("query", ("layers", "embed", "heads"), (16, 410, 10))
