"""The Transformer block: branches in turn, each with its norm and residual.

A branch is a module `(x, context, carried) -> (y, carried)`: x and y are [B, T, D], `context` holds everything else a
branch reads (`models.transformer.context`), `carried` is this branch's memory or cache, or None.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn

from models.layers.dropout import dropout
from models.transformer.context import Context

PLACEMENTS = ("pre", "post", "replace")


class Block(nn.Module):
    """For each branch f in turn, with its norm placed as `placement` says:

    pre:      x + f(norm(x))            GPT-2 (Radford et al. 2019, section 2.3)
    post:     norm(x + f(x))            the original Transformer, GPT and BERT
    replace:  norm(x) + f(norm(x))      the normalized value becomes the residual stream

    `branches` maps a branch's name, under which its parameters are, to its constructor; its norm is NAME_norm.
    """

    branches: Mapping[str, Callable[..., nn.Module]]
    norm: Callable[..., nn.Module]
    placement: str
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, context: Context, carried: Mapping[str, Any]):
        """x [B, T, D] -> [B, T, D], and what the branches carry, by name."""
        carried = dict(carried)
        for name, branch in self.branches.items():
            norm, residual = self.norm(name=f"{name}_norm"), x
            if self.placement != "post":
                x = norm(x)
            if self.placement == "replace":
                residual = x
            x, updated = branch(name=name)(x, context, carried.get(name))
            # Keys stay as they came, since a scan over layers needs one tree structure from first to last.
            if name in carried:
                carried[name] = updated
            key = self.make_rng("dropout") if context.train and self.dropout else None
            x = residual + dropout(x, self.dropout, key, context.row)
            if self.placement == "post":
                x = norm(x)
        return nn.with_logical_constraint(x, ("batch", "length", None)), carried
