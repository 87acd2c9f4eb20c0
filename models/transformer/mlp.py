"""The branch of feed-forward: two products with an activation between them, token by token."""

import functools
from collections.abc import Callable

import jax
from flax import linen as nn

from models.layers.activations import ACTIVATIONS, GATED
from models.layers.dropout import dropout
from models.layers.linear import Linear
from models.layers.remat import light
from models.transformer.context import Signals


class FeedForward(nn.Module):
    """act(x W_in) W_out, or gated: (act(x W_gate) * (x W_in)) W_out (Shazeer 2020)."""

    width: int
    ff: int
    activation: str
    bias: bool
    std: float
    out_std: float
    initialiser: Callable
    dropout: float
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, signals: Signals, carried: None) -> tuple[jax.Array, None]:
        """x [B, T, D] -> [B, T, D]; it carries nothing."""
        shared = {"bias": self.bias, "initialiser": self.initialiser}
        shared |= {"dtype": self.dtype, "param_dtype": self.param_dtype}
        widen = functools.partial(Linear, {"embed": self.width}, {"ff": self.ff}, std=self.std, **shared)
        activation = light(ACTIVATIONS[self.activation.removeprefix(GATED)])
        hidden = widen(name="in")(x)
        if self.activation.startswith(GATED):
            hidden = activation(widen(name="gate")(x)) * hidden
        else:
            hidden = activation(hidden)
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", "ff"))
        key = self.make_rng("dropout") if signals.train and self.dropout else None
        hidden = dropout(hidden, self.dropout, key, signals.row)
        return Linear({"ff": self.ff}, {"embed": self.width}, std=self.out_std, name="out", **shared)(hidden), carried
