"""Layer norm and RMS norm."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.init import constant, normal
from models.layers.remat import light

NORMS = ("layer", "rms")


class Norm(nn.Module):
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019) over the last axis, computed in float32.

    Gains start at N(init_mean, init_std).
    """

    kind: str
    epsilon: float
    init_mean: float
    init_std: float
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", self._gains(), x.shape[-1:], self.param_dtype)
        bias = None
        if self.kind == "layer":
            bias = self.param("bias", constant(0.0, "embed"), x.shape[-1:], self.param_dtype)
        return light(self._normalise)(x, scale, bias)

    def _gains(self):
        if self.init_std == 0.0:
            return constant(self.init_mean, "embed")
        return normal(self.init_std, "embed", inputs=0, mean=self.init_mean)

    def _normalise(self, x, scale, bias):
        y = x.astype(jnp.float32)
        if self.kind == "layer":
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon)
        y = y * jnp.broadcast_to(scale.astype(jnp.float32), y.shape)
        if bias is not None:
            y = y + jnp.broadcast_to(bias.astype(jnp.float32), y.shape)
        return y.astype(self.dtype)
