"""What Transformer-XL and XLNet have in common: layers that attend by distances, to what their lanes remember too."""

import functools
from collections.abc import Callable
from typing import ClassVar

import jax

from models.layers.dropout import dropout
from models.layers.init import normal
from models.layers.norm import Norm
from models.transformer.block import Block
from models.transformer.layer_stack import Stack
from models.transformer.memory import Memory
from models.transformer.mlp import FeedForward
from models.transformer.model import Model
from models.transformer.relative_attention import RelativeSelfAttention


class Remembering(Model):
    """Blocks of relative attention and a feed-forward branch, each normed behind it; lanes carry the layers' memory.

    by_segment and offsets are those of `RelativeSelfAttention`.
    """

    by_segment: ClassVar[bool]
    offsets: ClassVar[bool]

    layers: int
    width: int
    heads: int
    head_size: int
    ff: int
    memory: int
    clamp: int
    activation: str
    norm_epsilon: float
    attention_path: str
    dropout: float
    dropout_attention: float
    init_std: float
    dtype: str
    param_dtype: str
    scan: bool
    remat: str

    @property
    def remembered(self) -> int:
        """How many positions of a row are remembered; 0 means all."""
        return 0

    @property
    def gain_std(self) -> float:
        """How widely the norms' gains are drawn."""
        return 0.0

    def start(self, lanes: int) -> dict[str, Memory]:
        """What lanes of the batch carry at the start of their streams: memory that holds nothing, its axes named."""
        return {"attention": Memory.empty(self.layers, lanes, self.memory, self.width, self.dtype)}

    def stack_by(self, path: str) -> Stack:
        """All layers, their attention computed by `path`."""
        return Stack((self._block(path),), self.layers, self.scan, self.remat)

    def drops(self, train: bool) -> tuple[jax.Array | None, Callable]:
        """(the key of the layers' dropout, what drops of x at a numbered site outside of them, by row if told)."""
        key = self.make_rng("dropout") if train and (self.dropout or self.dropout_attention) else None

        def drop(x, site, row=None):
            return dropout(x, self.dropout, None if key is None else jax.random.fold_in(key, self.layers + site), row)

        return key, drop

    @property
    def _head_size(self) -> int:
        return self.head_size or self.width // self.heads

    @property
    def _shared(self) -> dict:
        """What both branches of a block are told."""
        return {"width": self.width, "std": self.init_std, "dtype": self.dtype, "param_dtype": self.param_dtype}

    def _attention(self, path: str) -> Callable:
        """What makes the attention of a block, computed by `path`."""
        return functools.partial(
            RelativeSelfAttention,
            heads=self.heads,
            head_size=self._head_size,
            by_segment=self.by_segment,
            offsets=self.offsets,
            reuse=self.remembered,
            dropout=self.dropout_attention,
            attention_path=path,
            **self._shared,
        )

    def _block(self, path: str) -> Block:
        feed_forward = functools.partial(
            FeedForward,
            ff=self.ff,
            activation=self.activation,
            bias=True,
            out_std=self.init_std,
            initialiser=normal,
            dropout=self.dropout,
            **self._shared,
        )
        norm = functools.partial(Norm, "layer", self.norm_epsilon, 1.0, self.gain_std, self.dtype, self.param_dtype)
        branches = {"attention": self._attention(path), "feed_forward": feed_forward}
        return Block(branches, norm, "post", self.dropout, parent=None)
