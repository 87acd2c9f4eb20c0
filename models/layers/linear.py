"""A matrix product over named axes, and a bias."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from models.layers.grad_sharding import added_up
from models.layers.init import constant, normal
from models.layers.products import PRODUCT, TURNED, product, turned_product


class Linear(nn.Module):
    """x [..., *inputs] -> [..., *outputs]: one matrix product over named axes, and a bias.

    `inputs` and `outputs` map axis name to size, in order; the kernel is [*inputs, *outputs]. A residual branch's last
    matrix starts at a smaller `std` where the recipe says so. `initialiser` is `normal` or `uniform`.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    bias: bool
    std: float
    dtype: str
    param_dtype: str
    initialiser: Callable = normal

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(self.dtype)
        if self.has_variable("params", TURNED):  # as decoding has it
            y = turned_product(x, self.get_variable("params", TURNED), len(self.inputs))
        else:
            names, shape = (*self.inputs, *self.outputs), (*self.inputs.values(), *self.outputs.values())
            start = self.initialiser(self.std, *names, inputs=len(self.inputs))
            kernel = added_up(self.param("kernel", start, shape, self.param_dtype), names)
            y = checkpoint_name(product(x, kernel, len(self.inputs), names=names), PRODUCT)
        if not self.bias:
            return y
        bias = self.param("bias", constant(0.0, *self.outputs), tuple(self.outputs.values()), self.param_dtype)
        return y + jnp.broadcast_to(bias.astype(self.dtype), y.shape)
