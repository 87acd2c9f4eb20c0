"""The Transformer block: branches in turn, each with its norm and its residual.

A branch is a module `(x, signals, carried) -> (y, carried)`: x and y are [B, T, D], `signals` is what flows beside x
(`signals.py`), `carried` what this branch carries through the layers (a memory, a cache) or None.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn

from models.layers.dropout import dropout
from models.transformer.context import Signals

PLACEMENTS = ("pre", "post", "replace")


class Block(nn.Module):
    """For each branch f in turn, with its norm placed as `placement` says:

    pre:      x + f(norm(x))            GPT-2 (Radford et al. 2019, section 2.3)
    post:     norm(x + f(x))            the original Transformer, GPT and BERT
    replace:  norm(x) + f(norm(x))      the normalised value becomes the residual stream

    `branches` maps a branch's name, under which its parameters are, to what makes it; its norm is NAME_norm.
    """

    branches: Mapping[str, Callable[..., nn.Module]]
    norm: Callable[..., nn.Module]
    placement: str
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, signals: Signals, carried: Mapping[str, Any]):
        """x [B, T, D] -> [B, T, D], and what the branches carry, by name: those that carry nothing are not there."""
        carried = dict(carried)
        for name, make in self.branches.items():
            norm, residual = self.norm(name=f"{name}_norm"), x
            if self.placement != "post":
                x = norm(x)
            if self.placement == "replace":
                residual = x
            x, kept = make(name=name)(x, signals, carried.get(name))
            if name in carried:
                carried[name] = kept
            key = self.make_rng("dropout") if signals.train and self.dropout else None
            x = residual + dropout(x, self.dropout, key, signals.row)
            if self.placement == "post":
                x = norm(x)
        return nn.with_logical_constraint(x, ("batch", "length", None)), carried
