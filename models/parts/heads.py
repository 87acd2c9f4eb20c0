"""The head's arithmetic: from what a model's `head_inputs` gives to logits. Losses start from the same three."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.parts.products import turned_product

FEW = 256  # rows, up to which a CPU's products are fastest with the weights on the left


def head_logits(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    """hidden [..., E], matrix [V, E], bias [V] or None -> logits [..., V] float32; products in hidden's dtype."""
    contracted = ((hidden.ndim - 1,), (1,)), ((), ())
    y = jax.lax.dot_general(hidden, matrix.astype(hidden.dtype), contracted, preferred_element_type=jnp.float32)
    return y if bias is None else y + jnp.broadcast_to(bias.astype(jnp.float32), y.shape)


def whole_logits(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    """The same over a model's whole vocabulary, split over the mesh as that is."""
    y = jax.lax.platform_dependent(hidden, matrix, bias, cpu=_of_few_rows, default=head_logits)
    return nn.with_logical_constraint(y, ("batch", "length", "vocab")[-y.ndim :])


def _of_few_rows(hidden: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
    """`head_logits` on a CPU, which reads the matrix as it lies where rows are few."""
    if math.prod(hidden.shape[:-1]) > FEW:
        return head_logits(hidden, matrix, bias)
    y = turned_product(hidden, matrix, 1, jnp.float32)
    return y if bias is None else y + jnp.broadcast_to(bias.astype(jnp.float32), y.shape)
