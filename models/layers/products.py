"""Matrix products with weights, whose gradients come out in the weight's own type and layout."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.grad_sharding import resting

PRODUCT = "product"  # the name under which remat policies find the results
TURNED = "turned"  # the name of a kernel that lies with its axes in reverse


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def product(x: jax.Array, kernel: jax.Array, inputs: int, dtype=None, names: Sequence[str] = ()) -> jax.Array:
    """x [..., *inputs] times kernel [*inputs, *outputs] -> [..., *outputs], contracting `inputs` axes, in x's dtype.

    The kernel stays in its own, wider type, and so does its gradient, which is never rounded to x's. What comes out is
    in `dtype`, or x's. `names` are those of the axes of a kernel that may be split over devices.
    """
    contracted = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
    kernel = _multiplied(kernel, x.dtype, names)
    return jax.lax.dot_general(x, kernel, (contracted, ((), ())), preferred_element_type=dtype)


def _multiplied(kernel, dtype, names):
    """The kernel as products take it: each device narrows what it has of it, and then gets the rest from the others.

    That is said, not left to the compiler, which gathers some of them twice in a backward pass.
    """
    narrow, rests = kernel.astype(dtype), resting(kernel, names) if names else None
    if rests is None or narrow.dtype == kernel.dtype:
        return narrow
    return nn.with_logical_constraint(jax.lax.with_sharding_constraint(narrow, rests), names)


def _forward(x, kernel, inputs, dtype, names):
    return product(x, kernel, inputs, dtype, names), (x, kernel)


def _backward(inputs, dtype, names, saved, d_y):
    x, kernel = saved
    d_y = d_y.astype(x.dtype)
    rows = x.ndim - inputs
    contracted = tuple(range(rows, d_y.ndim)), tuple(range(inputs, kernel.ndim))
    d_x = jax.lax.dot_general(d_y, _multiplied(kernel, d_y.dtype, names), (contracted, ((), ())))
    gradient = partial(jax.lax.dot_general, preferred_element_type=kernel.dtype)
    over_rows = (tuple(range(rows)),) * 2, ((), ())

    def plain(x, d_y):
        return gradient(x, d_y, over_rows)

    def narrow_first(x, d_y):
        """The same, transposed: XLA's CPU products copy their left operand, here [rows, F], when rows are summed.

        Taking the narrower one left makes a feed-forward block's forward and backward pass a quarter faster. The
        barrier keeps the compiler from turning it back.
        """
        transposed = jax.lax.optimization_barrier(gradient(d_y, x, over_rows))
        outputs = d_y.ndim - rows
        return jnp.transpose(transposed, (*range(outputs, transposed.ndim), *range(outputs)))

    if x.size <= d_y.size:
        return d_x, plain(x, d_y)
    return d_x, jax.lax.platform_dependent(x, d_y, cpu=narrow_first, default=plain)


product.defvjp(_forward, _backward)


def turned_product(x: jax.Array, turned: jax.Array, inputs: int, dtype=None) -> jax.Array:
    """The same as `product`, of a kernel with its axes in reverse, in `dtype`; for a few rows on a CPU.

    XLA's CPU products are faster with the weights on the left, as they lie: of 16 rows and 768 x 3,072 weights they
    take two thirds of the processor time, of one row no more than before.
    The barriers keep the compiler from turning it back.
    """
    contracted = tuple(range(turned.ndim - inputs, turned.ndim)), tuple(range(inputs))
    columns = jax.lax.optimization_barrier(x.T)
    y = jax.lax.dot_general(turned.astype(x.dtype), columns, (contracted, ((), ())), preferred_element_type=dtype)
    return jax.lax.optimization_barrier(y).T
