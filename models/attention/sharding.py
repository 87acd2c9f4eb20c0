"""Attention on a mesh: each device computes its own rows and heads, with any backend.

Rows of the batch and heads are independent. Tokens are not: if the mesh splits the sequence, an all-to-all exchanges
tokens for heads before attention and back after it (DeepSpeed Ulysses, Jacobs et al. 2023), so that a device holds
whole rows of some of the heads, and every backend and mask works as on one device.

Flax's logical axis rules and the mesh in scope say which mesh axes split which dimension; over the others devices do
the same work. All mesh axes are manual (`shard_map`), because no partitioner can split a kernel: Pallas kernels refuse
to compile otherwise. On one device this is a plain call.
"""

import math

import jax
from flax import linen as nn
from jax.sharding import PartitionSpec

from models.errors import ModelError


def attend(run, query, key, value, mask, bias, dropout, scale):
    """`run(query, key, value, mask, bias, dropout, scale)`, each device on its part: [B, T, N, H]."""
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
    shards, tensor = devices_of(mesh, length), devices_of(mesh, heads)
    for name, count in (("heads", query.shape[2]), ("kv_heads", key.shape[2])):
        if count // tensor % shards:
            raise ModelError(
                f"config.mesh.sequence={shards}: {count} {name} of one pattern do not divide over "
                f"{tensor * shards} sequence x tensor devices. Lower it."
            )

    def local(query, key, value, mask, bias, dropout):
        if length:
            # Tokens for heads: [B, T/n, N, H] -> [B, T, N/n, H], so every backend sees whole rows.
            query, key, value = (_all_to_all(x, length, split=2, join=1) for x in (query, key, value))
        out = run(query, key, value, mask, bias, dropout, scale)
        # And back: [B, T, N/n, H] -> [B, T/n, N, H].
        return _all_to_all(out, length, split=1, join=2) if length else out

    by_token = PartitionSpec(batch or None, length or None, heads or None, None)
    all_heads = (*heads, *length) or None  # biases and dropout are used after the exchange, with heads split further

    def by_row_and_head(x):
        # Dimensions of size 1 broadcast and are not split.
        pairs = zip(x.shape, (batch or None, all_heads), strict=False)
        return PartitionSpec(*(None if size == 1 else axes for size, axes in pairs))

    in_specs = (
        *[by_token] * 3,
        jax.tree.map(
            lambda x: PartitionSpec(*[batch or None if x.shape[:1] == query.shape[:1] else None][: x.ndim]), mask
        ),
        jax.tree.map(by_row_and_head, bias),
        jax.tree.map(lambda x: PartitionSpec(batch or None, all_heads), dropout),
    )
    # check_vma=False: kernels do not say over which axes their results vary.
    return jax.shard_map(local, in_specs=in_specs, out_specs=by_token, axis_names=free, check_vma=False)(
        query, key, value, mask, bias, dropout
    )


def split_over(mesh, logical: str, *sizes: int) -> tuple[str, ...]:
    """The mesh axes, larger than 1 and not yet manual, that split a logical axis; () unless they divide all `sizes`."""
    if mesh.empty or not nn.get_logical_axis_rules():
        return ()
    (axes,) = nn.logical_to_mesh_axes((logical,))
    axes = () if axes is None else (axes,) if isinstance(axes, str) else axes
    axes = tuple(axis for axis in axes if mesh.shape.get(axis, 1) > 1 and axis not in mesh.manual_axes)
    return axes if all(size % devices_of(mesh, axes) == 0 for size in sizes) else ()


def devices_of(mesh, axes) -> int:
    """Number of devices along mesh axes."""
    return math.prod(mesh.shape[axis] for axis in axes)


def _all_to_all(x, axes, split, join):
    return jax.lax.all_to_all(x, axes, split_axis=split, concat_axis=join, tiled=True)
