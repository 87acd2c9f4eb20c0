"""Decoder-only language models: GPT, GPT-2, CTRL, Sparse Transformer (Radford et al. 2018, 2019; Child et al. 2019)."""

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.errors import ModelError
from models.layers.dropout import dropout
from models.layers.embedding import lookup, sinusoid
from models.layers.init import constant, embedding_table, normal, residual_std
from models.layers.norm import Norm
from models.transformer.block import Block
from models.transformer.cache import Cache
from models.transformer.context import Context
from models.transformer.mlp import FeedForward
from models.transformer.model import Model, Output
from models.transformer.self_attention import SelfAttention


class Decoder(Model):
    """A GPT-style decoder. Fields are the keys of `configs.common.decoder()`, which documents them.

    Parameters of the layers are stored stacked, [L, ...] under "layers", whether or not the layers are scanned.
    """

    inputs: ClassVar[tuple[str, ...]] = ("tokens", "positions", "segments")
    context: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    query_size: int
    ff: int
    activation: str
    norm: str
    norm_epsilon: float
    final_norm_epsilon: float
    placement: str
    positions: str
    position_axes: tuple[int, ...]
    scale_embedding: bool
    start_row: bool
    bidirectional: bool
    attention: tuple[str, ...]
    attention_path: str
    attention_bias: bool
    ff_bias: bool
    tied_head: bool
    head_bias: bool
    dropout_embedding: float
    dropout_attention: float
    dropout_residual: float
    dropout_ff: float
    init_std: float
    init_gain: float
    head_init_std: float
    position_init_std: float
    norm_init_mean: float
    norm_init_std: float
    fused_glorot_init: bool
    scale_residual_init: bool
    dtype: str
    param_dtype: str
    scan: bool
    remat: str

    def setup(self):
        names, shape = ("vocab", "embed"), (self.vocab_size + self.start_row, self.width)
        self.tokens = self.param("tokens", embedding_table(normal(self.init_std, *names)), shape, self.param_dtype)
        init = embedding_table(normal(self.position_init_std, "positions", "embed"))
        if self.positions == "learned":
            self.rows = self.param("positions", init, (self.context, self.width), self.param_dtype)
        if self.positions == "factorised":
            self.axes = [
                self.param(f"positions_{axis}", init, (size, self.width), self.param_dtype)
                for axis, size in enumerate(self.position_axes)
            ]
        self.make_layers()
        # Post-norm layers end with a norm; "replace" leaves the sum unnormed.
        if self.placement == "pre":
            self.final_norm = self._norm(self.final_norm_epsilon or self.norm_epsilon)()
        if not self.tied_head:
            shape = (self.vocab_size, self.width)
            self.head = self.param("head", normal(self.head_init_std, *names), shape, self.param_dtype)
        if self.head_bias:
            self.bias = self.param("head_bias", constant(0.0, "vocab"), (self.vocab_size,), self.param_dtype)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        carried: Mapping[str, Any] | None = None,
        row: jax.Array | None = None,
        train: bool = False,
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D] in `dtype`, after the last norm.

        positions [B, T]: counted from 0 in each document; by default from the row's first token, or from the cache's
            end.
        segments [B, T]: documents of a row; a token sees its own alone, and 0 is padding.
        carried: what `init_cache` or the call before returned. Then segments only mark padding, at the right end of a
            prompt, with 0.
        row [B]: each row's index in the global batch, by which dropout draws; by default the index in `tokens`.
        train: dropout is on, with the rng named "dropout".
        """
        length = tokens.shape[1]
        carried = dict(carried or {})
        cache = carried.get("attention")
        self.check_length(tokens, self.context)
        if cache is not None:
            self.check_length(tokens, cache.capacity, "cache length")
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(length), tokens.shape) if cache is None else cache.slots(length)
        if cache is None:
            mask = Mask(causal=self.causal, query_segments=segments)
        else:
            mask = Mask(causal=True, offset=cache.lengths)

        x = self._embed(tokens, positions)
        row = jnp.arange(len(tokens)) if row is None else row
        key = self.make_rng("dropout") if train and self._drops else None
        x = dropout(x, self.dropout_embedding, key, row)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        x, carried = self.stack(self.stacked, x, Context(mask, row, positions, train=train), carried, key)
        if self.placement == "pre":
            x = self.final_norm(x)
        if cache is not None:
            carried["attention"] = carried["attention"].advance(length, segments)
        return Output(x, carried)

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Inputs of the output head: hidden [..., D], matrix [V, D], bias [V] or None."""
        table = self.tokens[: self.vocab_size] if self.start_row else self.tokens  # the start symbol is never predicted
        return hidden, table if self.tied_head else self.head, self.bias if self.head_bias else None

    def init_cache(self, rows: int, length: int) -> dict[str, Cache]:
        """An empty cache for `rows` texts of up to `length` tokens, prompt included."""
        if self.bidirectional:
            raise ModelError("config.model.bidirectional=True: cannot generate text. Train a model without it.")
        if length > self.context:
            raise ModelError(f"config.model.context={self.context}: below {length} tokens. Generate fewer tokens.")
        sizes = self.query_size or self._head_size, self._head_size
        return {"attention": Cache.empty(self.layers, rows, length, self._kv_heads, sizes, self.dtype)}

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        return not self.bidirectional

    @property
    def input_vocab_size(self) -> int:
        """Number of ids that can be read: those predicted, and a start symbol if there is one."""
        return self.vocab_size + self.start_row

    @property
    def input_limits(self) -> dict[str, int]:
        """For each input that indexes a table, the number of rows."""
        return super().input_limits | {"positions": self.context}

    @property
    def _head_size(self) -> int:
        return self.head_size or self.width // self.heads

    @property
    def _kv_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def _drops(self) -> bool:
        return any((self.dropout_embedding, self.dropout_attention, self.dropout_residual, self.dropout_ff))

    def _embed(self, tokens, positions):
        # Summed in the parameters' float32 and cast once.
        x = lookup(self.tokens, tokens)
        if self.scale_embedding:
            x = x * math.sqrt(self.width)
        if self.positions == "learned":
            x = x + jnp.take(self.rows, positions, axis=0)
        if self.positions.startswith("sinusoid"):
            x = x + sinusoid(positions, self.width, self.positions == "sinusoid_concatenated")
        if self.positions == "factorised":
            # Digits of the position in mixed radix, the last axis first: channel, then column, then row of an image.
            for table in reversed(self.axes):
                x = x + jnp.take(table, positions % len(table), axis=0)
                positions = positions // len(table)
        return x.astype(self.dtype)

    def _init_stack(self, key):
        x = jnp.zeros((1, 1, self.width), self.dtype)
        context = Context(Mask(causal=True), positions=jnp.zeros((1, 1), jnp.int32))
        return self.build_stack("reference").init(key, x, context)

    def _norm(self, epsilon: float):
        gains = self.norm_init_mean, self.norm_init_std
        return functools.partial(Norm, self.norm, epsilon, *gains, self.dtype, self.param_dtype)

    def _std(self, inputs: int, residual: bool = False) -> float:
        """Standard deviation of a matrix with so many inputs at initialization; `residual`: the last of a branch."""
        std = math.sqrt(self.init_gain / inputs) if self.init_gain else self.init_std
        return residual_std(std, self.layers) if residual and self.scale_residual_init else std

    def _block(self, pattern: str, backend: str) -> Block:
        shared = {"width": self.width, "std": self._std(self.width)}
        shared |= {"initializer": normal, "dtype": self.dtype, "param_dtype": self.param_dtype}
        attention = functools.partial(
            SelfAttention,
            heads=self.heads,
            kv_heads=self._kv_heads,
            head_size=self._head_size,
            query_size=self.query_size or self._head_size,
            pattern=parse_pattern(pattern),
            rotary=self.positions == "rotary",
            bias=self.attention_bias,
            dropout=self.dropout_attention,
            backend=backend,
            out_std=self._std(self.heads * self._head_size, residual=True),
            fused_glorot=self.fused_glorot_init,
            query_std=self._std(self.width),
            scale=None,
            **shared,
        )
        feed_forward = functools.partial(
            FeedForward,
            ff=self.ff,
            activation=self.activation,
            bias=self.ff_bias,
            dropout=self.dropout_ff,
            out_std=self._std(self.ff, residual=True),
            **shared,
        )
        branches = {"attention": attention, "feed_forward": feed_forward}
        return Block(branches, self._norm(self.norm_epsilon), self.placement, self.dropout_residual, parent=None)
