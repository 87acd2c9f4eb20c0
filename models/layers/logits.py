"""Output head: logits from a model's `head_inputs`, and tokens in chunks for losses that never hold all logits.

Logits of GPT-2 at B = 8, T = 1,024 take 1.6 GB in float32; a loss over chunks of tokens holds one chunk's.
"""

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.linear import transposed_product

FEW_ROWS = 256  # up to so many rows a CPU's products are fastest with the weights on the left
_single_chunk: ContextVar[bool] = ContextVar("single_chunk", default=False)


def head_logits(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    """hidden [..., E], matrix [V, E], bias [V] or None -> logits [..., V] float32; products in hidden's dtype."""
    # Accumulated and kept in float32: bfloat16 logits of size 16 would be apart by 1/8, and so would log-probabilities.
    contracted = ((hidden.ndim - 1,), (1,)), ((), ())
    y = jax.lax.dot_general(hidden, matrix.astype(hidden.dtype), contracted, preferred_element_type=jnp.float32)
    return add_bias(y, bias)


def add_bias(logits: jax.Array, bias: jax.Array | None) -> jax.Array:
    """logits [..., V] float32 plus a bias [V], if there is one."""
    return logits if bias is None else _add_bias(logits, bias)


# By hand, because the bias's gradient is a sum over B * T rows, for which see `sum_rows`.
@jax.custom_vjp
def _add_bias(logits, bias):
    return logits + jnp.broadcast_to(bias.astype(logits.dtype), logits.shape)


_add_bias.defvjp(
    lambda logits, bias: (_add_bias(logits, bias), bias), lambda bias, d: (d, sum_rows(d).astype(bias.dtype))
)


def sum_rows(logits: jax.Array) -> jax.Array:
    """The sum of logits [..., V] over all but the last axis: [V]."""

    # XLA's CPU reductions over such wide rows take up to 40 times as long as a product with a row of ones.
    def by_product(logits):
        rows = logits.reshape(-1, logits.shape[-1])
        return jnp.ones(len(rows), logits.dtype) @ rows

    def plain(logits):
        return logits.sum(tuple(range(logits.ndim - 1)))

    return jax.lax.platform_dependent(logits, cpu=by_product, default=plain)


def vocab_logits(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    """`head_logits` over a model's whole vocabulary, sharded over the mesh as that is."""
    y = jax.lax.platform_dependent(hidden, matrix, bias, cpu=_logits_on_cpu, default=head_logits)
    return nn.with_logical_constraint(y, ("batch", "length", "vocab")[-y.ndim :])


def _logits_on_cpu(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    if math.prod(hidden.shape[:-1]) > FEW_ROWS:
        return head_logits(hidden, matrix, bias)
    return add_bias(transposed_product(hidden, matrix, 1, jnp.float32), bias)


@contextlib.contextmanager
def single_chunk() -> Iterator[None]:
    """Within it a row is one chunk: a program traced to count its FLOPs has no padding to count."""
    token = _single_chunk.set(True)
    try:
        yield
    finally:
        _single_chunk.reset(token)


def split_chunks(tokens, rows: int):
    """Each array [B, T, ...] of a tree as [T / c, B, c, ...], with B * c at most `rows` if B allows.

    Chunks run along T, so that the rows of the batch stay on the devices that hold them. Zeros pad a T without a
    divisor c near that size, such as a prime; `join_chunks` cuts them off again.
    """
    length = jax.tree.leaves(tokens)[0].shape[1]

    def split(array):
        batch = array.shape[0]
        size = length if _single_chunk.get() else _chunk_size(length, max(1, rows // batch))
        array = jnp.pad(array, [(0, 0), (0, -length % size)] + [(0, 0)] * (array.ndim - 2))
        return jnp.moveaxis(array.reshape(batch, -1, size, *array.shape[2:]), 1, 0)

    return jax.tree.map(split, tokens)


def join_chunks(chunks, length: int):
    """The inverse of `split_chunks`, for arrays whose T was `length`."""

    def join(chunk):
        rows_first = jnp.moveaxis(chunk, 0, 1)
        return rows_first.reshape(rows_first.shape[0], -1, *rows_first.shape[3:])[:, :length]

    return jax.tree.map(join, chunks)


def _chunk_size(length: int, most: int) -> int:
    """The largest divisor of `length` up to `most`, or the size of equal chunks that need padding."""
    most = min(length, most)
    size = next(size for size in range(most, 0, -1) if length % size == 0)
    # T = 1,021 has no divisor but 1: below half of `most`, ceil(T / ceil(T / most)) rows and a few zeros are cheaper.
    return size if 2 * size >= most else -(-length // -(-length // most))
