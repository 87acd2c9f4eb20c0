"""The device mesh, and the sharding of each array on it.

Models name the axes of their arrays ("embed", "heads", ...); `config.mesh.rules` maps those names to the axes of the
mesh (`data`, `fsdp`, `sequence`, `tensor`). Errors name array, axis and sizes: a logical axis without a rule, a size
that does not divide. Over `fsdp` a parameter is split along whichever axis divides, and replicated where none does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import jax
import numpy as np
from flax import linen as nn
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from models.layers.backward import gradient_shardings
from models.layers.init import is_box, mesh_axes_of, path_name
from pretrain.errors import UserError, nearest
from pretrain.parallel.reduce_scatter import SPLIT, GradientSteps

AXES = ("data", "fsdp", "sequence", "tensor")
ANY_DEVICES = dict.fromkeys(AXES, 1) | {"fsdp": -1}  # mesh sizes that fit any number of devices
AUTO = (jax.sharding.AxisType.Auto,) * len(AXES)  # XLA chooses the shardings of intermediate arrays
PADDED = "vocab"  # the logical axis that need not divide: `pretrain.parallel.vocab_padding` rounds it up
SHARED = {"batch": "a batch", "length": "a row", "heads": "attention"}  # by logical axis, for errors
STACKED = "layers"  # the logical axis that `fsdp` never splits: a scan reads one layer after the other


def make_mesh(
    sizes: Mapping, devices: Sequence | None = None, report: Callable[[str], None] = lambda message: None
) -> Mesh:
    """The mesh of `config.mesh`: sizes by axis name, one of which may be -1 (all devices that are left).

    Neighbours on an axis are neighbours in a TPU pod; `report` receives a warning where that is impossible.
    """
    devices = list(jax.devices() if devices is None else devices)
    shape, free = _sizes(sizes)
    if free:
        # At least 1: with too few devices the error below names what is needed.
        shape[free] = max(1, len(devices) // math.prod(shape.values()))
    if math.prod(shape.values()) != len(devices):
        text = ", ".join(f"{axis}={sizes[axis]}" for axis in AXES)
        needed = math.prod(sizes[axis] for axis in AXES if axis != free)
        wants, remedy = (f"a multiple of {needed}", "") if free else (needed, ", or set one to -1")
        raise UserError(f"config.mesh ({text}) needs {wants} devices, not {len(devices)}. Change a size{remedy}.")
    sizes = tuple(shape.values())
    try:
        return jax.make_mesh(sizes, AXES, axis_types=AUTO, devices=devices)
    except NotImplementedError:  # no product of whole physical axes of the pod has an axis' size
        split = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    text = ", ".join(f"{axis}={size}" for axis, size in shape.items() if size > 1)
    pod = "x".join(str(1 + max(places)) for places in zip(*(device.coords for device in devices), strict=True))
    report(
        f"warning: config.mesh ({text}) splits the physical axes of a {pod} pod, which can be slow; products of whole "
        "axes use every link"
    )
    return Mesh(split, AXES, axis_types=AUTO)


def fits(sizes: Mapping, count: int) -> bool:
    """Whether `config.mesh` fits so many devices."""
    shape, free = _sizes(sizes)
    # The free axis counts as 1 here, so any multiple fits.
    product = math.prod(shape.values())
    return count % product == 0 if free else count == product


def smallest_mesh(sizes: Mapping) -> AbstractMesh:
    """The abstract mesh of `config.mesh` on as few devices as it fits: an axis of -1 has one."""
    shape, _ = _sizes(sizes)
    return AbstractMesh(tuple(shape.values()), AXES, axis_types=AUTO)


def _sizes(sizes: Mapping) -> tuple[dict[str, int], str]:
    """(size by axis, the axis of size -1 or ""); that axis counts as 1 until the devices are known."""
    free = [axis for axis in AXES if sizes[axis] == -1]
    if len(free) > 1:
        raise UserError(f"config.mesh.{free[0]}=-1 and config.mesh.{free[1]}=-1. Set -1 only once.")
    return {axis: 1 if axis in free else sizes[axis] for axis in AXES}, "".join(free)


class Layout:
    """Turns logical axis names into shardings on one mesh."""

    def __init__(self, mesh: Mesh | AbstractMesh, rules: Sequence[tuple]):
        self.mesh = mesh
        self.rules = {logical: mesh_axes_of(axes) for logical, axes in rules}
        for logical, axes in self.rules.items():
            for axis in axes:
                if axis not in AXES:
                    raise UserError(
                        f"config.mesh.rules maps '{logical}' to the mesh axis '{axis}'{nearest(axis, AXES)}"
                    )

    def spec(self, name: str, logical: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """The partition of the array `name` with logical axes `logical`."""
        parts = []
        for axis, size in zip(logical, shape, strict=True):
            if axis is None:
                parts.append(None)
                continue
            if axis not in self.rules:
                raise UserError(
                    f"config.mesh.rules: no rule for {axis!r} of parameter {name!r}. Add ({axis!r}, None) to "
                    "replicate it."
                )
            # Mesh axes of one device split nothing, so two logical axes may share them.
            mesh_axes = tuple(a for a in self.rules[axis] if self.mesh.shape[a] > 1)
            count = math.prod(self.mesh.shape[a] for a in mesh_axes)
            if size % count and axis != PADDED:
                raise UserError(
                    f"'{name}' has size {size} along '{axis}', not divisible by the {count} devices of config.mesh."
                    f"{' x '.join(mesh_axes)}. Change config.mesh or its rules."
                )
            parts.append(mesh_axes[0] if len(mesh_axes) == 1 else mesh_axes or None)
        return PartitionSpec(*parts)

    def parameter(self, name: str, logical: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """The partition of a parameter: by the rules, then over `fsdp` along its largest free axis."""
        # ZeRO: whatever the rules leave whole is split over `fsdp`, and gathered where it is used.
        spec = self.spec(name, logical, shape)
        spec = spread(self.mesh, spec, shape, ("fsdp",), [i for i, word in enumerate(logical) if word != STACKED])
        # If no axis divides, split the rows of a vocabulary, which can be padded: size 0 divides by anything.
        rows = [i for i, word in enumerate(logical) if word == PADDED]
        return PartitionSpec(*spread(self.mesh, spec, [0] * len(shape), ("fsdp",), rows))

    def sharding(self, spec: PartitionSpec | None = None) -> NamedSharding:
        """The sharding of a partition; without one, replicated."""
        return NamedSharding(self.mesh, spec or PartitionSpec())

    def parameters(self, boxed):
        """Shardings of a model's parameters, from their boxed shapes."""

        def one(path, box):
            return self.sharding(self.parameter(path_name(path), box.names, box.value.shape))

        return jax.tree_util.tree_map_with_path(one, boxed, is_leaf=is_box)

    def optimizer(self, shapes, parameters, parameter_shapes):
        """Shardings of an optimizer's state: each moment is sharded as its parameter.

        A leaf belongs to the parameter whose path ends its own. Adafactor's row and column moments, which lack some of
        the parameter's dimensions or join them, keep the axes of the others.
        """
        pairs = zip(jax.tree_util.tree_leaves_with_path(parameters), jax.tree.leaves(parameter_shapes), strict=True)
        table = {tuple(map(str, path)): (sharding.spec, tuple(shape.shape)) for (path, sharding), shape in pairs}

        def one(path, leaf):
            keys = tuple(map(str, path))
            # Optax nests moments under further keys: the parameter's path is the end of the leaf's.
            for start in range(len(keys)):
                if keys[start:] in table:
                    return self.sharding(_inherit(*table[keys[start:]], tuple(leaf.shape)))
            return self.sharding()

        return jax.tree_util.tree_map_with_path(one, shapes)

    def batch(self, shape: Sequence[int], axes: Sequence[str | None]) -> NamedSharding:
        """The sharding of an array of a batch with logical `axes`; the sizes must divide."""
        return self.sharding(self.spec("batch", axes, shape))

    @contextmanager
    def scope(self):
        """Context in which models know the mesh, its logical axes, and how gradients are reduced."""
        # On an abstract mesh nothing is placed, but tracing sees all shardings.
        known = use_abstract_mesh if isinstance(self.mesh, AbstractMesh) else jax.set_mesh
        rules = nn.logical_axis_rules([(name, axes or None) for name, axes in self.rules.items()])
        with known(self.mesh), rules, gradient_shardings(self._steps):
            yield

    def _steps(self, names: Sequence[str], shape: Sequence[int]) -> list[NamedSharding]:
        """The shardings that a parameter's gradient passes through; [] on one `fsdp` device and on abstract meshes."""
        if isinstance(self.mesh, AbstractMesh) or self.mesh.shape[SPLIT] == 1:
            return []
        return self._gradient_steps.to(self.parameter("kernel", names, shape), shape)

    @cached_property
    def _gradient_steps(self) -> GradientSteps:
        return GradientSteps(self.mesh)

    def batch_shards(self) -> int:
        """The number of parts that the rows of a batch are split into."""
        return math.prod(self.mesh.shape[axis] for axis in self.rules["batch"])

    def check(self, logical: str, size: int, key: str) -> None:
        """Raise UserError where `size`, the value of `key`, does not divide over the devices of a logical axis."""
        axes = self.rules.get(logical, ())
        count = math.prod(self.mesh.shape[axis] for axis in axes)
        if size % count:
            raise UserError(
                f"{key}={size} does not divide over the {count} devices that share {SHARED[logical]} "
                f"({' x '.join(axes)}). Make it a multiple, or change config.mesh."
            )

    def filled(self, size: int) -> int:
        """`size` rounded up to a multiple of `batch_shards`."""
        return -(-size // self.batch_shards()) * self.batch_shards()

    def rows(self, size: int) -> np.ndarray:
        """Indices of this process's rows in a batch of `size` rows, in order."""
        indices = self.batch((size,), ("batch",)).addressable_devices_indices_map((size,))
        return np.unique(np.concatenate([np.arange(size)[index[0]] for index in indices.values()]))

    def local_copy(self, arrays):
        """Global arrays whole on this process's first device; all processes call it."""
        device = self.mesh.local_devices[0]
        if jax.process_count() > 1:
            # Parts on other hosts can only be gathered by a program of all processes.
            whole = jax.jit(lambda tree: tree, out_shardings=self.sharding())(arrays)
            arrays = jax.tree.map(lambda array: array.addressable_data(0), whole)
        return jax.device_put(arrays, device)

    def put(self, batch: Mapping[str, np.ndarray], axes: Mapping[str, Sequence], size: int) -> dict[str, jax.Array]:
        """Global arrays with logical `axes`, from this process's rows of a batch of `size` rows."""
        position = {row: i for i, row in enumerate(self.rows(size))}  # global row -> place in `batch`

        def one(name, array):
            shape = (size, *array.shape[1:])
            sharding = self.batch(shape, axes[name])

            # JAX asks for the slice of each device; this process's rows need not be neighbours in the batch.
            def part(index):
                rows = range(*index[0].indices(size))
                first = position[rows[0]]
                return array[(slice(first, first + len(rows)), *index[1:])]

            return jax.make_array_from_callback(shape, sharding, part)

        return {name: one(name, array) for name, array in batch.items()}


def spread(mesh, spec: Sequence, shape: Sequence[int], mesh_axes: Sequence[str], among: Sequence[int]) -> list:
    """Split `spec` over the `mesh_axes` that it does not use yet, along the largest of its free axes `among`.

    If they divide none of these, `spec` stays as it is.
    """
    spec = list(spec)
    used = {axis for part in spec for axis in mesh_axes_of(part)}
    # An axis that is used already would split the array twice.
    new = tuple(axis for axis in mesh_axes if mesh.shape[axis] > 1 and axis not in used)
    count = math.prod(mesh.shape[axis] for axis in new)
    free = [axis for axis in among if spec[axis] is None and shape[axis] % count == 0]
    if new and free:
        spec[max(free, key=lambda axis: shape[axis])] = new[0] if len(new) == 1 else new
    return spec


def _inherit(spec: PartitionSpec, shape: tuple, reduced: tuple) -> PartitionSpec:
    """The partition of an array of shape `reduced`, made from one of `shape` by dropping or joining dimensions.

    Joined neighbours are split as the first of them: in row-major order its shards stay contiguous.
    """
    spec = (*spec, *(None,) * (len(shape) - len(spec)))
    if shape == reduced:
        return PartitionSpec(*spec)
    kept, dim = [], 0
    for size in reduced:
        # The first run of neighbours whose product is the size: dimensions are dropped or joined in order.
        spans = ((a, b) for a in range(dim, len(shape)) for b in range(a + 1, len(shape) + 1))
        span = next((span for span in spans if math.prod(shape[slice(*span)]) == size), None)
        if span is None:
            return PartitionSpec()
        kept.append(spec[span[0]])
        dim = span[1]
    return PartitionSpec(*kept)
