"""Sums over all tokens of a batch, each device adding up those of its own tokens first, whatever loop it does that in.

A partitioner that is given such a loop whole adds up over the devices in every turn: a gradient of the head's matrix,
vocabulary x width, once for each chunk of logits. Here it is added up once, behind the loop, and each device then keeps
what it holds of it: a reduce-scatter. What all tokens need, such as that matrix, is gathered once, before the loop.
"""

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from models.attention.sharding import split_over


def summed(run: Callable, tokens, rows, shared):
    """run(tokens, rows, shared) -> (sums, kept): the sums over all devices, and what stays where its tokens are.

    tokens: arrays [B, T, ...]; rows: arrays [B, ...]; shared: arrays of which every device needs all, but for axes that
    are split by tensor; sums: arrays of any shape; kept: arrays [B, T, ...]. Each a tree. On one device a plain call.
    """
    mesh = jax.sharding.get_abstract_mesh()
    B, T = jax.tree.leaves(tokens)[0].shape[:2]
    batch, length = split_over(mesh, "batch", B), split_over(mesh, "length", T)
    if not batch + length:
        return run(tokens, rows, shared)

    def local(tokens, rows, shared):
        sums, kept = run(tokens, rows, shared)
        return jax.tree.map(lambda array: array[None], sums), kept

    by_token = PartitionSpec(batch or None, length or None)
    sums, kept = jax.shard_map(
        local,
        in_specs=(by_token, PartitionSpec(batch or None), PartitionSpec()),
        out_specs=(PartitionSpec(batch + length), by_token),
        axis_names={*batch, *length},
        check_vma=False,
    )(tokens, rows, shared)
    return jax.tree.map(lambda array: array.sum(0), sums), kept
