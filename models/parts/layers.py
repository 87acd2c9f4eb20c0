"""The smallest parts: a matrix product, a norm, the feed-forward block, dropout, activations.

Every parameter carries the logical names of its axes (`nn.LogicallyPartitioned`); a table outside maps them to a mesh.
"""

import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from models.parts.products import PRODUCT, product

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),  # GPT, BERT's own release, ALBERT, XLNet
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),  # RoBERTa, ELECTRA, BART, ports of BERT
    "gelu_sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x),  # Sparse Transformer
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}
GATED = "gated_"  # before an activation's name: act(x W_gate) * (x W_in), as in T5 v1.1
NORMS = ("layer", "rms")


def light(function):
    """`function`, element-wise or nearly, keeping its inputs alone for the backward pass, which computes it again.

    A GELU or a norm would otherwise keep four or five arrays of its size: half of what a GPT-2 layer keeps.
    """
    return jax.checkpoint(function, prevent_cse=False)


def dropout(x: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
    """Zero a share `rate` of x and scale the rest by 1/(1 - rate); no key or no rate leaves x as it is."""
    if rng is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(rng, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


def normal(std: float, *names: str | None):
    """An initialiser N(0, std) whose parameter's axes carry `names`."""
    return nn.with_logical_partitioning(nn.initializers.normal(std), names)


def uniform(std: float, *names: str | None):
    """An initialiser, uniform around 0 with that standard deviation; the parameter's axes carry `names`."""
    bound = std * math.sqrt(3)

    def draw(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return nn.with_logical_partitioning(draw, names)


def constant(value: float, *names: str | None):
    """An initialiser that fills in `value`; the parameter's axes carry `names`."""
    return nn.with_logical_partitioning(nn.initializers.constant(value), names)


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
        names, shape = (*self.inputs, *self.outputs), (*self.inputs.values(), *self.outputs.values())
        kernel = self.param("kernel", self.initialiser(self.std, *names), shape, self.param_dtype)
        y = checkpoint_name(product(x.astype(self.dtype), kernel, len(self.inputs)), PRODUCT)
        if not self.bias:
            return y
        bias = self.param("bias", constant(0.0, *self.outputs), tuple(self.outputs.values()), self.param_dtype)
        return y + jnp.broadcast_to(bias.astype(self.dtype), y.shape)


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
        draw = nn.initializers.normal(self.init_std)
        return nn.with_logical_partitioning(lambda *args: self.init_mean + draw(*args), ("embed",))

    def _normalise(self, x, scale, bias):
        y = x.astype(jnp.float32)
        if self.kind == "layer":
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon)
        y = y * jnp.broadcast_to(scale.astype(jnp.float32), y.shape)
        if bias is not None:
            y = y + jnp.broadcast_to(bias.astype(jnp.float32), y.shape)
        return y.astype(self.dtype)


class FeedForward(nn.Module):
    """act(x W_in) W_out, or gated: (act(x W_gate) * (x W_in)) W_out (Shazeer 2020)."""

    width: int
    ff: int
    activation: str
    bias: bool
    std: float
    out_std: float
    dropout: float
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        kind = {"bias": self.bias, "dtype": self.dtype, "param_dtype": self.param_dtype}
        widen = functools.partial(Linear, {"embed": self.width}, {"ff": self.ff}, std=self.std, **kind)
        activation = light(ACTIVATIONS[self.activation.removeprefix(GATED)])
        hidden = widen(name="in")(x)
        if self.activation.startswith(GATED):
            hidden = activation(widen(name="gate")(x)) * hidden
        else:
            hidden = activation(hidden)
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", "ff"))
        hidden = dropout(hidden, self.dropout, self.make_rng("dropout") if train and self.dropout else None)
        return Linear({"ff": self.ff}, {"embed": self.width}, std=self.out_std, name="out", **kind)(hidden)


def residual_std(std: float, layers: int) -> float:
    """Standard deviation of a residual branch's last matrix: std / sqrt(2 L) (Radford et al. 2019, section 2.3)."""
    return std / math.sqrt(2 * layers)
