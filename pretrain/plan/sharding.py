"""Where every parameter lies on a mesh, and which rule put it there."""

import math

import jax

from models.layers.parameter import is_box, mesh_axes_of, path_name
from pretrain.costs.sizes import on_device
from pretrain.metrics.progress import amount
from pretrain.parallel.mesh import PADDED

LARGE = 0.01  # a parameter is large that is so much of all of them


def shardings(spec) -> list[dict]:
    """A row for each parameter: name, shape, logical axes, mesh axes of each dimension, bytes on a device, the rule."""
    boxes = jax.tree_util.tree_leaves_with_path(spec.parameters, is_leaf=is_box)
    resting = jax.tree.leaves(spec.padded_shapes(spec.layout.batch_shards()).params)
    return [_row(spec.layout, path_name(path), box, leaf) for (path, box), leaf in zip(boxes, resting, strict=True)]


def warnings(rows: list[dict], mesh) -> list[str]:
    """A sentence for each large parameter of which every device holds all; one for all where the mesh splits none."""
    count = math.prod(mesh.values())
    whole = sum(row["bytes"] for row in rows)
    large = [row for row in rows if row["copies"] == count and row["bytes"] >= LARGE * whole]
    if count == 1 or not large:
        return []
    if all(mesh[axis] == 1 for axis in ("fsdp", "tensor")):
        return [
            f"every parameter is whole on each of {count} devices, {amount(whole)}B of them: this mesh splits rows "
            "alone; config.mesh.fsdp splits parameters, gradients and optimiser state too"
        ]
    return [
        f"{row['name']} ({amount(row['bytes'])}B) is whole on each of {count} devices: {row['rule']}" for row in large
    ]


def _row(layout, name: str, box, resting) -> dict:
    axes, shape = box.names, box.value.shape
    by_rules = _parts(layout.spec(name, axes, shape), shape)
    parts = _parts(layout.parameter(name, axes, shape), shape)
    used = {axis for part in parts for axis in part}
    return {
        "name": name,
        "shape": list(shape),
        "axes": list(axes),
        "split": [list(part) for part in parts],
        "copies": layout.mesh.size // math.prod(layout.mesh.shape[axis] for axis in used),
        "bytes": math.prod(shape) * resting.dtype.itemsize,
        "bytes_per_device": on_device(resting),
        "rule": _rule(layout, axes, by_rules, parts),
    }


def _rule(layout, axes, by_rules, parts) -> str:
    """What gave each dimension its axes, in words."""
    mesh = layout.mesh
    said = [f"{axis} -> {' x '.join(part)}" for axis, part in zip(axes, by_rules, strict=True) if part]
    for axis, before, after in zip(axes, by_rules, parts, strict=True):
        if before != after:
            why = "the largest free axis that divides" if axis != PADDED else "rows of a table, padded where they must"
            said.append(f"fsdp takes {axis}, {why}")
    if mesh.shape["fsdp"] > 1 and not any("fsdp" in part for part in parts):
        said.append(f"fsdp: {mesh.shape['fsdp']} divides no free axis")
    idle = [f"{axis} -> {' x '.join(layout.rules[axis])}" for axis in axes if axis and layout.rules[axis]]
    of_one = f"{', '.join(idle)} by config.mesh.rules, of which this mesh has 1" if idle else ""
    return "; ".join(said) or of_one or "no rule of config.mesh.rules splits it"


def _parts(spec, shape) -> list[tuple[str, ...]]:
    parts = [*spec, *[None] * (len(shape) - len(spec))]
    return [mesh_axes_of(part) for part in parts]
