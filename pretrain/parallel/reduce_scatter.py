"""Gradients are added up along one direction of a pod after the other, and each device keeps its share of every sum.

XLA makes a reduce-scatter of a sum of which each device keeps a part, but for TPUs only along one direction of the pod.
Over all of them at once it sends every device the whole sum (all-reduce) and cuts that afterwards: twice the bytes,
and the whole gradient of a layer in memory. Along the first direction everything travels, along the next only what is
left of it; together as much as in one reduce-scatter. (libtpu 0.0.42; tests/benchmarks.)
"""

import math
from collections.abc import Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.layers.parameter import mesh_axes_of

SPLIT = "fsdp"  # the mesh axis over which parameters are split


def directions(devices: Sequence) -> tuple[int, ...]:
    """How many devices a line of them has in each direction of the pod, the last of which changes fastest.

    One direction where devices have no places. A line that turns, as the ring through 4 x 4 chips does, counts as two.
    """
    rest, sizes = [getattr(device, "coords", None) for device in devices], []
    if None in rest:
        return (len(devices),)
    while len(rest) > 1:
        changed = {axis for axis, (a, b) in enumerate(zip(*rest[:2], strict=True)) if a != b}
        run = [
            place
            for place in rest
            if all(a == b or i in changed for i, (a, b) in enumerate(zip(place, rest[0], strict=True)))
        ]
        if len(changed) != 1 or len(rest) % len(run) or run != rest[: len(run)]:
            return _halves(len(devices))
        sizes.insert(0, len(run))
        rest = rest[:: len(run)]
    return tuple(sizes)


def _halves(count: int) -> tuple[int, ...]:
    """Two factors that are nearly the same, the smaller first; one where there are none."""
    first = max(size for size in range(1, math.isqrt(count) + 1) if count % size == 0)
    return (count,) if first == 1 else (first, count // first)


class Steps:
    """The shardings that a gradient goes through on one mesh until it lies as its parameter does."""

    def __init__(self, mesh: Mesh):
        before = math.prod(mesh.devices.shape[: mesh.axis_names.index(SPLIT)])
        line = mesh.devices.reshape(before, mesh.shape[SPLIT], -1)[0, :, 0]
        self.parts = tuple(f"{SPLIT}_{i}" for i in range(len(directions(line))))
        sizes = [directions(line) if axis == SPLIT else (size,) for axis, size in mesh.shape.items()]
        names = [self.parts if axis == SPLIT else (axis,) for axis in mesh.axis_names]
        self.mesh = mesh
        self.fine = Mesh(
            mesh.devices.reshape(sum(sizes, ())),
            sum(names, ()),
            axis_types=(jax.sharding.AxisType.Auto,) * len(sum(names, ())),
        )

    def to(self, spec: PartitionSpec, shape: Sequence[int]) -> list[NamedSharding]:
        """The shardings on the way to `spec`, which is the last, of an array of `shape`; none for what is not split.

        What does not divide, the rows of a vocabulary, is cut at other places by fewer devices, and so brought at once.
        """
        dimensions = zip(shape, map(mesh_axes_of, spec), strict=True)
        split = [(size, axes) for size, axes in dimensions if SPLIT in axes]
        if not split:
            return []
        even = all(size % math.prod(self.mesh.shape[axis] for axis in axes) == 0 for size, axes in split)
        firsts = [self.parts[:count] for count in range(1, len(self.parts))] if even else []
        return [*(NamedSharding(self.fine, _replaced(spec, first)) for first in firsts), NamedSharding(self.mesh, spec)]


def _replaced(spec, first) -> PartitionSpec:
    """`spec`, split only over the first of the directions."""
    parts = (sum(((first if axis == SPLIT else (axis,)) for axis in mesh_axes_of(part)), ()) for part in spec)
    return PartitionSpec(*(part or None for part in parts))
