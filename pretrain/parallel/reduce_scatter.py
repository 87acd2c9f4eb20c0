"""Reduce-scatter of gradients over a TPU pod, one physical direction after the other.

XLA compiles a sum of which each device keeps a part to a reduce-scatter, but on TPUs only along one direction of the
pod. Over all of them at once it sends the whole sum to every device (all-reduce) and cuts it afterwards: twice the
bytes, and the whole gradient of a layer in memory. Direction by direction the first moves everything and the next only
the rest of it: together as many bytes as one reduce-scatter. (libtpu 0.0.42; tests/benchmarks.)
"""

import math
from collections.abc import Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.layers.init import mesh_axes_of

SPLIT = "fsdp"  # the mesh axis over which parameters are split


def directions(devices: Sequence) -> tuple[int, ...]:
    """The sizes of a line of devices along each direction of the pod, the last of which changes fastest.

    Devices without coordinates have one direction. A line that turns, as the ring through 4 x 4 chips, counts as two.
    """
    rest, sizes = [getattr(device, "coords", None) for device in devices], []
    if None in rest:
        return (len(devices),)
    while len(rest) > 1:
        # The coordinates in which the first two devices differ: one, if they are neighbours on a straight line.
        changed = {axis for axis, (a, b) in enumerate(zip(*rest[:2], strict=True)) if a != b}
        run = [
            place
            for place in rest
            if all(a == b or i in changed for i, (a, b) in enumerate(zip(place, rest[0], strict=True)))
        ]
        if len(changed) != 1 or len(rest) % len(run) or run != rest[: len(run)]:
            return _halves(len(devices))
        sizes.insert(0, len(run))
        # One device of each run is left: the next direction is theirs.
        rest = rest[:: len(run)]
    return tuple(sizes)


def _halves(count: int) -> tuple[int, ...]:
    """Two nearly equal factors, the smaller first; (count,) for primes."""
    first = max(size for size in range(1, math.isqrt(count) + 1) if count % size == 0)
    return (count,) if first == 1 else (first, count // first)


class GradientSteps:
    """The shardings that a gradient passes through on one mesh until it has its parameter's."""

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
        """The shardings on the way to `spec`, the last, of an array of `shape`; [] where `fsdp` does not split it."""
        dimensions = zip(shape, map(mesh_axes_of, spec), strict=True)
        split = [(size, axes) for size, axes in dimensions if SPLIT in axes]
        if not split:
            return []
        # Rows of a vocabulary that do not divide are cut at other places by fewer devices: they go in one step.
        even = all(size % math.prod(self.mesh.shape[axis] for axis in axes) == 0 for size, axes in split)
        firsts = [self.parts[:count] for count in range(1, len(self.parts))] if even else []
        return [*(NamedSharding(self.fine, _replaced(spec, first)) for first in firsts), NamedSharding(self.mesh, spec)]


def _replaced(spec, first) -> PartitionSpec:
    """`spec` with `fsdp` replaced by the first of its directions."""
    parts = (sum(((first if axis == SPLIT else (axis,)) for axis in mesh_axes_of(part)), ()) for part in spec)
    return PartitionSpec(*(part or None for part in parts))
