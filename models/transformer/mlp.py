"""The feed-forward branch, and activation functions by the names that configs use."""

import functools
from collections.abc import Callable, Mapping

import jax
from flax import linen as nn

from models.layers.backward import remat_elementwise
from models.layers.dropout import dropout
from models.layers.linear import Linear
from models.transformer.adapters import LoRA
from models.transformer.block import Context

# GELU has three forms in published models (Hendrycks and Gimpel 2016); they differ by up to 2e-2, and a checkpoint
# needs the one it was trained with.
ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),  # GPT, BERT's own release, ALBERT, XLNet
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),  # RoBERTa, ELECTRA, BART, ports of BERT
    "gelu_sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x),  # Sparse Transformer
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}
GATED = "gated_"  # prefix of an activation's name: act(x W_gate) * (x W_in), as in T5 v1.1
FEED_FORWARD = (*ACTIVATIONS, *(GATED + name for name in ACTIVATIONS))  # activations of feed-forward branches


class FeedForward(nn.Module):
    """act(x W_in) W_out, or gated: (act(x W_gate) * (x W_in)) W_out (Shazeer 2020)."""

    width: int
    ff: int
    activation: str
    bias: bool
    std: float
    out_std: float
    initializer: Callable
    dropout: float
    dtype: str
    param_dtype: str
    lora: LoRA = LoRA()

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, carried: None) -> tuple[jax.Array, None]:
        """x [B, T, D] -> [B, T, D]; it carries nothing."""
        shared = {"bias": self.bias, "initializer": self.initializer}
        shared |= {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def widen(name):
            options = shared | self.lora.of(name)
            return Linear({"embed": self.width}, {"ff": self.ff}, std=self.std, name=name, **options)

        activation = remat_elementwise(ACTIVATIONS[self.activation.removeprefix(GATED)])
        hidden = widen("in")(x)
        if self.activation.startswith(GATED):
            hidden = activation(widen("gate")(x)) * hidden
        else:
            hidden = activation(hidden)
        # Split over the mesh as the kernels' columns are: no exchange until the second product.
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", "ff"))
        key = self.make_rng("dropout") if context.train and self.dropout else None
        hidden = dropout(hidden, self.dropout, key, context.row)
        narrow = Linear(
            {"ff": self.ff}, {"embed": self.width}, std=self.out_std, name="out", **shared, **self.lora.of("out")
        )
        return narrow(hidden), carried
