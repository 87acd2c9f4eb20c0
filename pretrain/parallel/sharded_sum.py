"""Sums over all tokens of a batch: each device sums its own tokens in a loop, then devices add up once.

A partitioner that is given such a loop whole adds up over devices in every iteration: the gradient of the head's
matrix, vocabulary x width, once for each chunk of logits. Here that is one reduce-scatter after the loop, and what all
tokens need, such as the matrix, is gathered once before it.
"""

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from models.attention.sharding import split_over


def summed(run: Callable, tokens, rows, shared):
    """run(tokens, rows, shared) -> (sums over all devices, outputs that stay with their tokens).

    tokens: arrays [B, T, ...]. rows: arrays [B, ...]. shared: arrays that every device needs whole, but for axes split
    by `tensor`. sums: arrays of any shape; outputs: arrays [B, T, ...]. Each is a tree. On one device a plain call.
    """
    mesh = jax.sharding.get_abstract_mesh()
    B, T = jax.tree.leaves(tokens)[0].shape[:2]
    batch, length = split_over(mesh, "batch", B), split_over(mesh, "length", T)
    if not batch + length:
        return run(tokens, rows, shared)

    def local(tokens, rows, shared):
        sums, outputs = run(tokens, rows, shared)
        # A leading axis of one for each device: summed over outside of shard_map, where XLA can reduce-scatter it.
        return jax.tree.map(lambda array: array[None], sums), outputs

    by_token = PartitionSpec(batch or None, length or None)
    sums, outputs = jax.shard_map(
        local,
        in_specs=(by_token, PartitionSpec(batch or None), PartitionSpec()),
        out_specs=(PartitionSpec(batch + length), by_token),
        axis_names={*batch, *length},
        check_vma=False,
    )(tokens, rows, shared)
    return jax.tree.map(lambda array: array.sum(0), sums), outputs
