"""Layer norm and RMS norm."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.backward import remat_elementwise
from models.layers.init import constant, normal

NORMS = ("layer", "rms")


class Norm(nn.Module):
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019) over the last axis, computed in float32.

    Gains start at N(init_mean, init_std^2). offset: added to the gains (Gemma: 1). axis: name of the last axis.
    """

    kind: str
    epsilon: float
    dtype: str
    param_dtype: str
    init_mean: float = 1.0
    init_std: float = 0.0
    offset: float = 0.0
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = constant(self.init_mean, self.axis)
        if self.init_std:
            init = normal(self.init_std, self.axis, inputs=0, mean=self.init_mean)
        scale = self.param("scale", init, x.shape[-1:], self.param_dtype)
        bias = None
        if self.kind == "layer":
            bias = self.param("bias", constant(0.0, self.axis), x.shape[-1:], self.param_dtype)
        return remat_elementwise(self._normalize)(x, scale, bias)

    def _normalize(self, x, scale, bias):
        # The variance is taken of the centred values: E[x^2] - E[x]^2 cancels where the mean is large.
        y = x.astype(jnp.float32)
        if self.kind == "layer":
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon)
        gain = scale.astype(jnp.float32)
        if self.offset:
            gain = gain + self.offset
        y = y * jnp.broadcast_to(gain, y.shape)
        if bias is not None:
            y = y + jnp.broadcast_to(bias.astype(jnp.float32), y.shape)
        return y.astype(self.dtype)
