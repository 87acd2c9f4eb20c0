"""Few parameters that adapt a trained model: low-rank changes of matrices, and bottlenecks after branches."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
from flax import linen as nn

from models.layers.init import truncated_normal
from models.layers.linear import Linear

ADAPTER_STD = 1e-2  # of both matrices; section 3.6 of Houlsby et al.
# Names of a branch's matrices that LoRA may adapt; `gate` is that of gated feed-forward branches.
TARGETS = ("query", "key", "value", "output", "in", "gate", "out")


@dataclass(frozen=True)
class LoRA:
    """Which matrices of a branch have a low-rank change alpha / rank * A B (Hu et al. 2021); rank 0: none."""

    rank: int = 0
    alpha: float = 1.0
    targets: Sequence[str] = ()

    def of(self, name: str) -> dict:
        """Fields of the `Linear` of this name."""
        return {"rank": self.rank, "scale": self.alpha / self.rank} if self.rank and name in self.targets else {}


class Adapter(nn.Module):
    """x + W_up gelu(W_down x), nearly the identity at the start (Houlsby et al. 2019, section 2.1)."""

    size: int
    width: int
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> [B, T, D]."""

        def linear(name, inputs, outputs):
            options = {"dtype": self.dtype, "param_dtype": self.param_dtype, "initializer": truncated_normal}
            return Linear(inputs, outputs, bias=True, std=ADAPTER_STD, name=name, **options)

        hidden = jax.nn.gelu(linear("down", {"embed": self.width}, {None: self.size})(x))
        return x + linear("up", {None: self.size}, {"embed": self.width})(hidden)
