"""The Transformer block: branches in turn, each with its norm and residual, and the context that they read.

A branch is a module `(x, context, carried) -> (y, carried)`: x and y are [B, T, D], `context` holds everything else a
branch reads, `carried` is this branch's memory or cache, or None.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn
from flax import struct

from models.attention.biases import Bias
from models.attention.masks import Mask
from models.layers.dropout import dropout

PLACEMENTS = ("pre", "post", "replace")


@struct.dataclass
class Distances:
    """Positions of relative attention: sinusoids of distances, and the biases u and v that all layers share."""

    rows: jax.Array  # [R, D], the farthest first; or [2, R, D], for text in reading order and backwards
    content_bias: jax.Array | None  # u [N, H]; None if each layer has its own
    position_bias: jax.Array | None  # v [N, H]
    backward: jax.Array | None = None  # [B] bool: which of the two each row of the batch reads


@struct.dataclass
class SegmentIds:
    """Segments of queries and keys, as relative attention compares them (Yang et al. 2019, section 2.5)."""

    # float32, because they are leaves of a bias, and a bias is differentiated by all its leaves.
    query: jax.Array  # [B, T]
    key: jax.Array  # [B, S]


@struct.dataclass
class QueryStream:
    """XLNet's query stream g: the last rows of x, which read the other rows and are read by none."""

    mask: Mask  # of the stream's queries
    segment_ids: SegmentIds | None

    @property
    def length(self) -> int:
        return self.mask.query_columns.shape[1]


@struct.dataclass
class Source:
    """The encoder's output that cross-attention reads."""

    hidden: jax.Array | None  # [B, S, D]; None when decoding, which carries keys and values instead
    mask: Mask  # which of it each query sees


@struct.dataclass
class Context:
    """Inputs of a block's branches besides x [B, T, D]; the same for all layers but `layer`."""

    mask: Mask  # each layer's attention adds its own pattern
    row: jax.Array | None = None  # [B] int32: index of each row in the global batch, which dropout draws by
    positions: jax.Array | None = None  # [B or 1, T] int32 of rotary attention; of memory and x: [.., M + T]
    distances: Distances | None = None  # of relative attention
    segment_ids: SegmentIds | None = None  # of relative attention
    query_stream: QueryStream | None = None  # of relative attention
    bias: Bias | None = None  # added to the scores of every layer's self-attention
    source: Source | None = None  # of cross-attention
    layer: jax.Array | None = None  # [] int32: index of the layer, set by the stack
    train: bool = struct.field(pytree_node=False, default=False)  # dropout is on


class Block(nn.Module):
    """For each branch f in turn, with its norm placed as `placement` says:

    pre:      x + f(norm(x))            GPT-2 (Radford et al. 2019, section 2.3)
    post:     norm(x + f(x))            the original Transformer, GPT and BERT
    replace:  norm(x) + f(norm(x))      the normalized value becomes the residual stream

    `branches` maps a branch's name, under which its parameters are, to its constructor; its norm is NAME_norm.
    adapter: makes the module NAME_adapter that f's output passes after dropout; None: none.
    """

    branches: Mapping[str, Callable[..., nn.Module]]
    norm: Callable[..., nn.Module]
    placement: str
    dropout: float
    adapter: Callable[..., nn.Module] | None = None

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
            # No new keys: a scan over layers needs the same tree structure in every iteration.
            if name in carried:
                carried[name] = updated
            key = self.make_rng("dropout") if context.train and self.dropout else None
            x = dropout(x, self.dropout, key, context.row)
            if self.adapter:
                x = self.adapter(name=f"{name}_adapter")(x)
            x = residual + x
            if self.placement == "post":
                x = norm(x)
        return nn.with_logical_constraint(x, ("batch", "length", None)), carried
