"""Heads of tasks: from hidden states to the numbers that a task asks for (classes, a value, spans)."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.dropout import dropout
from models.layers.init import constant, normal
from models.layers.linear import Linear
from models.layers.norm import Norm
from models.transformer.mlp import ACTIVATIONS

DENSE, DROPOUT = "dense", "dropout"
STEPS = (DENSE, DROPOUT, "tanh", *ACTIVATIONS)  # what a model's `summary` may name
MIXES = ("none", "plain", "normed")  # values of a model's `mix`
LOWEST = -1e30  # below every score; finite, so that sums and differences are too
HEAD_STD = 0.02  # initial standard deviation of heads, as in the releases of BERT, RoBERTa, XLNet and GPT


@dataclasses.dataclass(frozen=True)
class Task:
    """What a model predicts instead of tokens.

    unit: what has a prediction: "row", "token", or "pair" (of rows: 3 D features). outputs: numbers of a prediction; 0:
    none, hidden states alone are used. steps: to the prediction, as `Head` has them; rows have the model's `summary`.
    predicts_tokens: whether it keeps the head that predicts tokens. joint: tokens have `JointSpans` instead of `Head`.
    """

    unit: str
    outputs: int
    steps: tuple[str, ...] = (DROPOUT,)
    predicts_tokens: bool = False
    joint: bool = False


class Head(nn.Module):
    """x [..., D] -> [..., outputs] in float32: the `steps` in turn, then a linear map.

    Steps are "dense" (D to D), "dropout" or a function, such as BERT's ("dense", "tanh", "dropout").
    """

    steps: tuple[str, ...]
    outputs: int
    bias: bool
    rate: float
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, row: jax.Array, key: jax.Array | None, dense: Callable | None = None):
        """`dense` is the model's own layer for the step of that name; None: the head makes one."""
        shared = {"std": HEAD_STD, "dtype": self.dtype, "param_dtype": self.param_dtype, "initializer": normal}
        width = {"embed": x.shape[-1]}
        for site, step in enumerate(self.steps):
            if step == DENSE:
                x = (dense or Linear(width, {None: x.shape[-1]}, bias=True, name=DENSE, **shared))(x)
            elif step == DROPOUT:
                x = dropout(x, self.rate, None if key is None else jax.random.fold_in(key, site), row)
            else:
                x = jnp.tanh(x) if step == "tanh" else ACTIVATIONS[step](x)
        return Linear(width, {None: self.outputs}, bias=self.bias, name="out", **shared)(x).astype(jnp.float32)


class JointSpans(nn.Module):
    """The first and the last token of an answer, the last one given the first (Yang et al. 2019, released code)."""

    epsilon: float
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, real: jax.Array, begins: jax.Array, nowhere: jax.Array, starts, number: int = 1):
        """x [B, T, D] -> (start [B, T], starts [B, K], end given each of them [B, K, T], no answer [B]), float32.

        real, begins: bool [B, T], tokens, and those where an answer may begin; others score LOWEST. nowhere [B]: the
        token that stands for no answer. starts [B, 1]: the right ones; None: the `number` best.
        """
        D = x.shape[-1]
        shared = {"std": HEAD_STD, "dtype": self.dtype, "param_dtype": self.param_dtype, "initializer": normal}

        def linear(name, inputs, outputs, bias=True):
            return Linear({"embed": inputs}, {None: outputs}, bias=bias, name=name, **shared)

        def at(places):
            return jnp.take_along_axis(x, places[..., None], axis=1)

        start = jnp.where(real, linear("start", D, 1)(x)[..., 0].astype(jnp.float32), LOWEST)
        # Before an answer is known its first token is the mean of all, weighted by their probabilities.
        begin = jnp.einsum("bt,btd->bd", jax.nn.softmax(start), x.astype(jnp.float32)).astype(x.dtype)
        if starts is None:
            _, starts = jax.lax.top_k(jnp.where(begins, start, LOWEST), min(number, x.shape[1]))
        else:
            begin = at(starts)[:, 0]
        none = jnp.tanh(linear("none_dense", 2 * D, D)(jnp.concatenate([begin, at(nowhere[:, None])[:, 0]], axis=-1)))
        none = linear("none_out", D, 1, bias=False)(none)[..., 0].astype(jnp.float32)
        shape = (*starts.shape, *x.shape[1:])
        pairs = jnp.broadcast_to(x[:, None], shape), jnp.broadcast_to(at(starts)[:, :, None], shape)
        y = jnp.tanh(linear("end_dense", 2 * D, D)(jnp.concatenate(pairs, axis=-1)))
        y = Norm("layer", self.epsilon, self.dtype, self.param_dtype, axis=None, name="end_norm")(y)
        end = linear("end_out", D, 1)(y)[..., 0].astype(jnp.float32)
        return start, starts, jnp.where(real[:, None], end, LOWEST), none


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(weights)_j h_j over layers, of equal weight at the start (Peters et al. 2018, equation 1).

    epsilon: that of a layer norm of each h_j, without parameters; None: no norm.
    """

    epsilon: float | None
    param_dtype: str

    @nn.compact
    def __call__(self, layers: jax.Array) -> jax.Array:
        """layers [L + 1, ..., D] -> [..., D]."""
        weights = self.param("weights", constant(0.0, None), layers.shape[:1], self.param_dtype)
        gamma = self.param("gamma", constant(1.0), (), self.param_dtype)
        # In float32: a sum over 25 layers in bfloat16 would round at each of them.
        x = layers.astype(jnp.float32)
        if self.epsilon is not None:
            x = jax.nn.standardize(x, axis=-1, epsilon=self.epsilon)
        return (gamma * jnp.tensordot(jax.nn.softmax(weights), x, axes=1)).astype(layers.dtype)
