"""The head's arithmetic: from what a model's `head_inputs` gives to logits. Losses start from the same three."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.products import turned_product

FEW = 256  # rows, up to which a CPU's products are fastest with the weights on the left


def head_logits(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    """hidden [..., E], matrix [V, E], bias [V] or None -> logits [..., V] float32; products in hidden's dtype."""
    contracted = ((hidden.ndim - 1,), (1,)), ((), ())
    y = jax.lax.dot_general(hidden, matrix.astype(hidden.dtype), contracted, preferred_element_type=jnp.float32)
    return biased(y, bias)


def biased(logits: jax.Array, bias: jax.Array | None) -> jax.Array:
    """logits [..., V] float32 and a bias [V] or None, added."""
    return logits if bias is None else _biased(logits, bias)


@jax.custom_vjp
def _biased(logits, bias):
    return logits + jnp.broadcast_to(bias.astype(logits.dtype), logits.shape)


_biased.defvjp(lambda logits, bias: (_biased(logits, bias), bias), lambda bias, d: (d, over_rows(d).astype(bias.dtype)))


def over_rows(logits: jax.Array) -> jax.Array:
    """The sum of logits [..., V] over all but the last axis: [V].

    XLA's CPU programs take up to 40 times as long to add so wide rows up as to multiply them by a row of ones.
    """

    def by_product(logits):
        rows = logits.reshape(-1, logits.shape[-1])
        return jnp.ones(len(rows), logits.dtype) @ rows

    def plain(logits):
        return logits.sum(tuple(range(logits.ndim - 1)))

    return jax.lax.platform_dependent(logits, cpu=by_product, default=plain)


def whole_logits(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    """The same over a model's whole vocabulary, split over the mesh as that is."""
    y = jax.lax.platform_dependent(hidden, matrix, bias, cpu=_of_few_rows, default=head_logits)
    return nn.with_logical_constraint(y, ("batch", "length", "vocab")[-y.ndim :])


def _of_few_rows(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    """`head_logits` on a CPU, which reads the matrix as it lies where rows are few."""
    if math.prod(hidden.shape[:-1]) > FEW:
        return head_logits(hidden, matrix, bias)
    return biased(turned_product(hidden, matrix, 1, jnp.float32), bias)
