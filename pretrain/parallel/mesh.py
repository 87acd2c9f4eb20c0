"""The device mesh, and where each array lives on it.

Models name the axes of their arrays ("embed", "heads", ...); `config.mesh.rules` maps those names to
the axes of the mesh (`data`, `fsdp`, `sequence`, `tensor`). Everything here fails early and by name: a
logical axis that no rule knows, a mesh axis used twice by one array, a size that does not divide. Over `fsdp` each
parameter is split along whichever axis serves, and left whole where none does.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import jax
import numpy as np
from flax import linen as nn
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

from models.layers.grad_sharding import adding_up
from models.layers.parameter import is_box, mesh_axes_of, path_name
from pretrain.errors import UserError, nearest
from pretrain.parallel.reduce_scatter import SPLIT, Steps

AXES = ("data", "fsdp", "sequence", "tensor")
OF_ANY_NUMBER = dict.fromkeys(AXES, 1) | {"fsdp": -1}  # sizes of a mesh that any number of devices makes
AUTO = (jax.sharding.AxisType.Auto,) * len(AXES)  # the type of each: XLA splits what no sharding says
PADDED = "vocab"  # the logical axis that need not divide: `pretrain.parallel.vocab_padding` rounds it up
SHARED = {"batch": "a batch", "length": "a row", "heads": "attention"}  # what devices share, by logical axis
STACKED = "layers"  # the logical axis that `fsdp` leaves alone: a scan reads one layer after the other


def make_mesh(
    sizes: Mapping, devices: Sequence | None = None, report: Callable[[str], None] = lambda message: None
) -> Mesh:
    """The mesh of `config.mesh`: sizes by axis name, one of which may be -1 (whatever devices are left).

    Devices of a TPU are laid out so that neighbours on an axis are neighbours in the pod; `report` is told where that
    cannot be.
    """
    given = jax.devices() if devices is None else devices
    devices = list(given) if isinstance(given, Iterable) else [None]
    if not all(hasattr(device, "device_kind") for device in devices):
        raise UserError(f"devices is {given!r}, not a list of JAX's devices; give one, such as jax.devices()[:1]")
    if len({*devices}) < len(devices):
        raise UserError("devices has some device more than once; give each once")
    if not devices:
        raise UserError("no devices are given; give at least one, or none at all for those that there are")
    shape, free = _sizes(sizes)
    if free:
        shape[free] = max(1, len(devices) // math.prod(shape.values()))
    if math.prod(shape.values()) != len(devices):
        text = ", ".join(f"{axis}={sizes[axis]}" for axis in AXES)
        needed = math.prod(sizes[axis] for axis in AXES if axis != free)
        wants, or_free = (f"a multiple of {needed}", "") if free else (needed, ", or give one axis the size -1")
        cpu = "; so many virtual ones: python -m launch.local --processes 1 --devices N -- train ..."
        virtual = cpu if devices[0].platform == "cpu" else ""
        raise UserError(
            f"config.mesh ({text}) needs {wants} devices and there are {len(devices)}; change one of its sizes{or_free}"
            f"{virtual}"
        )
    sizes = tuple(shape.values())
    try:
        return jax.make_mesh(sizes, AXES, axis_types=AUTO, devices=devices)
    except NotImplementedError:  # an axis is no product of whole physical axes
        split = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    text = ", ".join(f"{axis}={size}" for axis, size in shape.items() if size > 1)
    pod = "x".join(str(1 + max(places)) for places in zip(*(device.coords for device in devices), strict=True))
    report(
        f"config.mesh ({text}) splits the physical axes of a {pod} pod, which can be slow; sizes that are products of "
        "whole physical axes use every link"
    )
    return Mesh(split, AXES, axis_types=AUTO)


def fits(sizes: Mapping, count: int) -> bool:
    """Whether so many devices make the mesh of `config.mesh`."""
    shape, free = _sizes(sizes)
    product = math.prod(shape.values())
    return count % product == 0 if free else count == product


def smallest_mesh(sizes: Mapping) -> AbstractMesh:
    """The mesh of `config.mesh` over as few devices as it fits, none of which is there: an axis of -1 has one."""
    shape, _ = _sizes(sizes)
    return AbstractMesh(tuple(shape.values()), AXES, axis_types=AUTO)


def _sizes(sizes: Mapping) -> tuple[dict[str, int], str]:
    """(size by axis, the axis that takes whatever devices are left, 1 until they are known; "" if there is none)."""
    free = [axis for axis in AXES if sizes[axis] == -1]
    if len(free) > 1:
        raise UserError(f"config.mesh gives the size -1 to {' and '.join(free)}; give it to one axis at most")
    return {axis: 1 if axis in free else sizes[axis] for axis in AXES}, "".join(free)


class Layout:
    """Turns logical axis names into shardings on one mesh."""

    def __init__(self, mesh: Mesh | AbstractMesh, rules: Sequence[tuple]):
        self.mesh = mesh
        self.rules = {}
        for rule in rules:
            logical, axes = _pair(rule)
            if logical in self.rules:
                raise UserError(
                    f"config.mesh.rules names the logical axis '{logical}' twice; keep one of the two rules"
                )
            for axis in axes:
                if axis not in AXES:
                    raise UserError(
                        f"config.mesh.rules maps '{logical}' to the mesh axis '{axis}'{nearest(axis, AXES)}"
                    )
            self.rules[logical] = axes
        if "batch" not in self.rules:
            raise UserError("config.mesh.rules does not map 'batch', the rows of a batch; add ('batch', 'data')")

    def spec(self, name: str, logical: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """The partition of one array called `name` whose dimensions are named `logical`."""
        parts, used = [], {}
        for axis, size in zip(logical, shape, strict=True):
            if axis is None:
                parts.append(None)
                continue
            if axis not in self.rules:
                raise UserError(
                    f"parameter '{name}' has the logical axis '{axis}', which config.mesh.rules does not map; "
                    f"add ('{axis}', None) to replicate it"
                )
            mesh_axes = tuple(a for a in self.rules[axis] if self.mesh.shape[a] > 1)
            for mesh_axis in mesh_axes:
                if mesh_axis in used:
                    raise UserError(
                        f"parameter '{name}' would be split twice over the mesh axis '{mesh_axis}': by its logical "
                        f"axes '{used[mesh_axis]}' and '{axis}'; map one of them elsewhere in config.mesh.rules"
                    )
                used[mesh_axis] = axis
            count = math.prod(self.mesh.shape[a] for a in mesh_axes)
            if size % count and axis != PADDED:
                raise UserError(
                    f"parameter '{name}' has size {size} along '{axis}', which the {count} devices of mesh axis "
                    f"{' x '.join(mesh_axes)} do not divide; change config.mesh or map '{axis}' elsewhere in "
                    "config.mesh.rules"
                )
            parts.append(mesh_axes[0] if len(mesh_axes) == 1 else mesh_axes or None)
        return PartitionSpec(*parts)

    def parameter(self, name: str, logical: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """The partition of a parameter: by the rules, then over `fsdp` along the largest axis that they leave.

        Where no axis divides, the rows of a vocabulary are taken, since those can be padded.
        """
        spec = self.spec(name, logical, shape)
        spec = spread(self.mesh, spec, shape, ("fsdp",), [i for i, word in enumerate(logical) if word != STACKED])
        rows = [i for i, word in enumerate(logical) if word == PADDED]
        return PartitionSpec(*spread(self.mesh, spec, [0] * len(shape), ("fsdp",), rows))  # 0 divides by anything

    def sharding(self, spec: PartitionSpec | None = None) -> NamedSharding:
        """The sharding of a partition; without one, a copy on every device."""
        return NamedSharding(self.mesh, spec or PartitionSpec())

    def parameters(self, boxed):
        """Shardings of a model's parameters, from `jax.eval_shape(model.init, ...)["params"]` with its axis names."""

        def one(path, leaf):
            name = path_name(path)
            if not is_box(leaf):
                return self.sharding()
            return self.sharding(self.parameter(name, leaf.names, leaf.value.shape))

        return jax.tree_util.tree_map_with_path(one, boxed, is_leaf=is_box)

    def optimizer(self, shapes, parameters, parameter_shapes):
        """Shardings of an optimiser's state: each moment lies where its parameter does.

        A leaf belongs to the parameter whose path ends its own. One that lacks some of the parameter's
        dimensions, or has some as one (Adafactor's row and column moments), keeps the axes of those that are left.
        """
        table = {
            tuple(map(str, path)): (sharding.spec, tuple(shape.shape))
            for (path, sharding), shape in zip(
                jax.tree_util.tree_leaves_with_path(parameters), jax.tree.leaves(parameter_shapes), strict=True
            )
        }

        def one(path, leaf):
            keys = tuple(map(str, path))
            for start in range(len(keys)):
                if keys[start:] in table:
                    return self.sharding(_inherit(*table[keys[start:]], tuple(leaf.shape)))
            return self.sharding()

        return jax.tree_util.tree_map_with_path(one, shapes)

    def batch(self, shape: Sequence[int], axes: Sequence[str | None]) -> NamedSharding:
        """Sharding of an array of a batch whose dimensions are named `axes`; the sizes must divide."""
        return self.sharding(self.spec("batch", axes, shape))

    @contextmanager
    def scope(self):
        """In it the mesh and the names of its axes are known to models, and how gradients are added up."""
        known = use_abstract_mesh if isinstance(self.mesh, AbstractMesh) else jax.set_mesh
        rules = nn.logical_axis_rules([(name, axes or None) for name, axes in self.rules.items()])
        with known(self.mesh), rules, adding_up(self._steps):
            yield

    def _steps(self, names: Sequence[str], shape: Sequence[int]) -> list[NamedSharding]:
        """The shardings that the gradient of a parameter goes through; none where none is split or no device known."""
        if isinstance(self.mesh, AbstractMesh) or self.mesh.shape[SPLIT] == 1:
            return []
        return self._directions.to(self.parameter("kernel", names, shape), shape)

    @cached_property
    def _directions(self) -> Steps:
        return Steps(self.mesh)

    def batch_shards(self) -> int:
        """Into how many parts the rows of a batch are split."""
        return math.prod(self.mesh.shape[axis] for axis in self.rules["batch"])

    def check(self, logical: str, size: int, key: str) -> None:
        """Raises UserError where the devices that share the logical axis do not divide `size`, the value of `key`."""
        axes = self.rules.get(logical, ())
        count = math.prod(self.mesh.shape[axis] for axis in axes)
        if size % count:
            raise UserError(
                f"{key} = {size} does not divide over the {count} devices that share {SHARED[logical]} "
                f"({' x '.join(axes)}); make it a multiple of {count}, or change config.mesh"
            )

    def filled(self, size: int) -> int:
        """`size`, or the next number of rows that the devices which share a batch divide."""
        return -(-size // self.batch_shards()) * self.batch_shards()

    def rows(self, size: int) -> np.ndarray:
        """Which of a batch's `size` rows this process's devices hold, in order."""
        indices = self.batch((size,), ("batch",)).addressable_devices_indices_map((size,))
        return np.unique(np.concatenate([np.arange(size)[index[0]] for index in indices.values()]))

    def put(self, batch: Mapping[str, np.ndarray], axes: Mapping[str, Sequence], size: int) -> dict[str, jax.Array]:
        """This process's rows of a global batch of `size` rows, as global arrays, whose dimensions `axes` names."""
        position = {row: i for i, row in enumerate(self.rows(size))}

        def one(name, array):
            shape = (size, *array.shape[1:])
            sharding = self.batch(shape, axes[name])

            def part(index):
                rows = range(*index[0].indices(size))
                first = position[rows[0]]
                return array[(slice(first, first + len(rows)), *index[1:])]

            return jax.make_array_from_callback(shape, sharding, part)

        return {name: one(name, array) for name, array in batch.items()}


def _pair(rule) -> tuple[str, tuple[str, ...]]:
    """(logical axis, mesh axes) of one of `config.mesh.rules`."""
    match rule:
        case (str(logical), None):
            return logical, ()
        case (str(logical), str(axis)):
            return logical, (axis,)
        case (str(logical), [*axes]) if all(isinstance(axis, str) for axis in axes):
            return logical, tuple(axes)
    raise UserError(
        f"config.mesh.rules holds {rule!r}; a rule pairs a logical axis with a mesh axis, a tuple of them, or None, "
        "such as ('batch', ('data', 'fsdp'))"
    )


def spread(mesh, spec: Sequence, shape: Sequence[int], mesh_axes: Sequence[str], among: Sequence[int]) -> list:
    """`spec` split further over the `mesh_axes` that it does not use, along the largest free axis that they divide.

    `among` are the indices of the axes to choose from; where none serves, the array is not split further.
    """
    spec = list(spec)
    used = {axis for part in spec for axis in mesh_axes_of(part)}
    new = tuple(axis for axis in mesh_axes if mesh.shape[axis] > 1 and axis not in used)
    count = math.prod(mesh.shape[axis] for axis in new)
    free = [axis for axis in among if spec[axis] is None and shape[axis] % count == 0]
    if new and free:
        spec[max(free, key=lambda axis: shape[axis])] = new[0] if len(new) == 1 else new
    return spec


def _inherit(spec: PartitionSpec, shape: tuple, reduced: tuple) -> PartitionSpec:
    """The partition of an array of shape `reduced`, made from one of `shape` by dropping and joining dimensions.

    Neighbours that are joined are split as the first of them was.
    """
    spec = (*spec, *(None,) * (len(shape) - len(spec)))
    if shape == reduced:
        return PartitionSpec(*spec)
    kept, dim = [], 0
    for size in reduced:
        spans = ((a, b) for a in range(dim, len(shape)) for b in range(a + 1, len(shape) + 1))
        span = next((span for span in spans if math.prod(shape[slice(*span)]) == size), None)
        if span is None:
            return PartitionSpec()
        kept.append(spec[span[0]])
        dim = span[1]
    return PartitionSpec(*kept)
