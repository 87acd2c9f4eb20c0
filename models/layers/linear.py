"""Linear maps over named axes, with gradients in the weight's own dtype and sharding."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from models.layers.backward import DOT_NAME, constrain_gradient, parameter_sharding
from models.layers.init import box, constant, normal, uniform

TRANSPOSED = "transposed"  # name of a kernel with its axes reversed, as decoding on a CPU stores it


class Linear(nn.Module):
    """x [..., *inputs] -> [..., *outputs]: a matrix product over named axes, and a bias.

    `inputs` and `outputs` map axis name to size, in order; the kernel is [*inputs, *outputs], drawn by
    `initializer(std, ...)`. rank: above 0, the kernel has a low-rank change scale * A B, which starts at 0 (LoRA).
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    bias: bool
    std: float
    dtype: str
    param_dtype: str
    initializer: Callable = normal
    rank: int = 0
    scale: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(self.dtype)
        if self.has_variable("params", TRANSPOSED):
            y = transposed_product(x, self.get_variable("params", TRANSPOSED), len(self.inputs))
        else:
            names, shape = (*self.inputs, *self.outputs), (*self.inputs.values(), *self.outputs.values())
            init = self.initializer(self.std, *names, inputs=len(self.inputs))
            kernel = constrain_gradient(self.param("kernel", init, shape, self.param_dtype), names)
            y = checkpoint_name(product(x, kernel, len(self.inputs), names=names), DOT_NAME)
        if self.rank:
            y = y + self._low_rank(x)
        if not self.bias:
            return y
        bias = self.param("bias", constant(0.0, *self.outputs), tuple(self.outputs.values()), self.param_dtype)
        return y + jnp.broadcast_to(bias.astype(self.dtype), y.shape)

    def _low_rank(self, x):
        """scale * x A B: A [*inputs, rank] as PyTorch draws matrices, B [rank, *outputs] of zeros."""
        sizes = tuple(self.inputs.values())
        init = uniform(1 / math.sqrt(3 * math.prod(sizes)), *self.inputs, None, inputs=len(sizes))
        down = self.param("lora_a", init, (*sizes, self.rank), self.param_dtype)
        init = box(nn.initializers.zeros, (None, *self.outputs), 1)
        up = self.param("lora_b", init, (self.rank, *self.outputs.values()), self.param_dtype)
        return self.scale * product(product(x, down, len(sizes)), up, 1)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def product(x: jax.Array, kernel: jax.Array, inputs: int, dtype=None, names: Sequence[str] = ()) -> jax.Array:
    """x [..., *inputs] times kernel [*inputs, *outputs] -> [..., *outputs], contracting `inputs` axes.

    The product runs in x's dtype and returns `dtype`, by default x's. The kernel's gradient comes in the kernel's own,
    wider dtype and is never rounded to x's. `names` are the axes of a kernel that may be sharded.
    """
    contracted = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
    kernel = _cast(kernel, x.dtype, names)
    return jax.lax.dot_general(x, kernel, (contracted, ((), ())), preferred_element_type=dtype)


def _cast(kernel, dtype, names):
    """The kernel in the dtype of the product, gathered from its shards after the cast, not before."""
    narrow, sharding = kernel.astype(dtype), parameter_sharding(kernel, names) if names else None
    if sharding is None or narrow.dtype == kernel.dtype:
        return narrow
    # Two constraints in a row: cast each shard, then all-gather. Half the bytes travel, and the compiler, left alone,
    # gathers some kernels twice in the backward pass.
    return nn.with_logical_constraint(jax.lax.with_sharding_constraint(narrow, sharding), names)


def _forward(x, kernel, inputs, dtype, names):
    return product(x, kernel, inputs, dtype, names), (x, kernel)


def _backward(inputs, dtype, names, residuals, d_y):
    x, kernel = residuals
    d_y = d_y.astype(x.dtype)
    rows = x.ndim - inputs
    contracted = tuple(range(rows, d_y.ndim)), tuple(range(inputs, kernel.ndim))
    # Cast and gathered again: a narrow copy of every kernel would be kept until here.
    d_x = jax.lax.dot_general(d_y, _cast(kernel, d_y.dtype, names), (contracted, ((), ())))
    # bfloat16 inputs, float32 result: the sum over B * T rows is never rounded to 8 bits of mantissa.
    gradient = partial(jax.lax.dot_general, preferred_element_type=kernel.dtype)
    over_rows = (tuple(range(rows)),) * 2, ((), ())

    def plain(x, d_y):
        return gradient(x, d_y, over_rows)

    def narrow_first(x, d_y):
        # XLA's CPU products copy their left operand, here [rows, F], when rows are summed. With the narrower one on
        # the left, forward and backward of a feed-forward block take a quarter less time. Without the barrier the
        # compiler swaps the operands back.
        transposed = jax.lax.optimization_barrier(gradient(d_y, x, over_rows))
        outputs = d_y.ndim - rows
        return jnp.transpose(transposed, (*range(outputs, transposed.ndim), *range(outputs)))

    if x.size <= d_y.size:
        return d_x, plain(x, d_y)
    return d_x, jax.lax.platform_dependent(x, d_y, cpu=narrow_first, default=plain)


product.defvjp(_forward, _backward)


def transposed_product(x: jax.Array, transposed: jax.Array, inputs: int, dtype=None) -> jax.Array:
    """`product` with a kernel whose axes are reversed, for few rows on a CPU; not differentiated."""
    # XLA's CPU products are faster with the weights on the left, in stored order: 16 rows times 768 x 3,072 weights
    # take two thirds of the processor time, one row no more than before. Barriers keep the compiler from swapping.
    contracted = tuple(range(transposed.ndim - inputs, transposed.ndim)), tuple(range(inputs))
    columns = jax.lax.optimization_barrier(x.T)
    y = jax.lax.dot_general(transposed.astype(x.dtype), columns, (contracted, ((), ())), preferred_element_type=dtype)
    return jax.lax.optimization_barrier(y).T
