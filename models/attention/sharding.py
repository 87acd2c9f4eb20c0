"""Attention on a mesh: each device attends for its own rows and heads, whatever the path.

Rows of the batch and heads need nothing from each other. Tokens do: where the mesh splits the sequence, an all-to-all
trades tokens for heads before attention and back after it (Jacobs et al. 2023, "DeepSpeed Ulysses"), so that a device
holds whole rows of a share of the heads, and every path and every mask works as on one device.

Which mesh axes split which dimension is read from Flax's logical axis rules and the mesh in scope; over the others each
device does the same. On several devices all of the mesh is manual, because no partitioner can split a kernel: Pallas
kernels refuse to compile otherwise, cuDNN's would be left to a partitioner of its own. On one device this is a plain
call.
"""

import math

import jax
from flax import linen as nn
from jax.sharding import PartitionSpec

from models.errors import ModelError


def attend(run, query, key, value, mask, bias, dropout, scale):
    """`run(query, key, value, mask, bias, dropout, scale)`, each device on its share: [B, T, N, H]."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = {
        "batch": split_over(mesh, "batch", query.shape[0]),
        "length": split_over(mesh, "length", query.shape[1], key.shape[1]),
        "heads": split_over(mesh, "heads", query.shape[2], key.shape[2]),
    }
    free = {*mesh.axis_names} - {*mesh.manual_axes}
    if not free or mesh.size == 1:
        return run(query, key, value, mask, bias, dropout, scale)
    batch, length, heads = axes.values()
    shards = devices_of(mesh, length)
    _check_heads(query, key, shards, devices_of(mesh, heads))

    def local(query, key, value, mask, bias, dropout):
        if length:
            query, key, value = (_trade(x, length, split=2, join=1) for x in (query, key, value))
        out = run(query, key, value, mask, bias, dropout, scale)
        return _trade(out, length, split=1, join=2) if length else out

    by_token = PartitionSpec(batch or None, length or None, heads or None, None)
    all_heads = (*heads, *length) or None  # tokens were traded for heads, which are split further by those axes
    in_specs = (
        *[by_token] * 3,
        jax.tree.map(
            lambda x: PartitionSpec(*[batch or None if x.shape[:1] == query.shape[:1] else None][: x.ndim]), mask
        ),
        jax.tree.map(lambda x: PartitionSpec(*_unless_one(x.shape, (batch, all_heads))), bias),
        jax.tree.map(lambda x: PartitionSpec(batch or None, all_heads), dropout),
    )
    return jax.shard_map(local, in_specs=in_specs, out_specs=by_token, axis_names=free, check_vma=False)(
        query, key, value, mask, bias, dropout
    )


def split_over(mesh, logical: str, *sizes: int) -> tuple[str, ...]:
    """The mesh axes, larger than 1 and not yet manual, over which a logical axis of `sizes` is split."""
    if mesh.empty or not nn.get_logical_axis_rules():
        return ()
    (axes,) = nn.logical_to_mesh_axes((logical,))
    axes = () if axes is None else (axes,) if isinstance(axes, str) else axes
    axes = tuple(axis for axis in axes if mesh.shape.get(axis, 1) > 1 and axis not in mesh.manual_axes)
    return axes if all(size % devices_of(mesh, axes) == 0 for size in sizes) else ()


def devices_of(mesh, axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _check_heads(query, key, shards, tensor):
    for name, count in (("heads", query.shape[2]), ("kv_heads", key.shape[2])):
        if count // tensor % shards:
            raise ModelError(
                f"{count} attention {name} of one pattern on {tensor} tensor and {shards} sequence devices: tokens are "
                f"traded for heads, so {name} must be a multiple of {tensor * shards}; lower config.mesh.sequence"
            )


def _trade(x, axes, split, join):
    return jax.lax.all_to_all(x, axes, split_axis=split, concat_axis=join, tiled=True)


def _unless_one(shape, specs):
    """The axes that split each leading dimension, but for those that broadcast."""
    return [None if size == 1 else spec or None for size, spec in zip(shape, specs, strict=False)]
