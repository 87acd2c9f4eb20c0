"""Decoder-only language models: GPT, GPT-2, CTRL, Sparse Transformer (Radford et al. 2018, 2019; Child et al. 2019).

Llama (Touvron et al. 2023), Mistral, Qwen and Gemma are the same network with other fields (`configs/llama.py`).
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.masks import Mask
from models.attention.patterns import Dense, parse_pattern
from models.layers.dropout import dropout
from models.layers.embedding import lookup, sinusoid
from models.layers.init import embedding_table, normal, residual_std
from models.layers.norm import Norm
from models.transformer.block import Block, Context
from models.transformer.cache import Cache
from models.transformer.model import Model, Output
from models.transformer.multihead import SelfAttention

MAX_BRANCHES = 2**30


class Decoder(Model):
    """A GPT-style decoder. Fields are the keys of `configs.common.decoder()`, which documents them.

    Parameters of the layers are stored stacked, [L, ...] under "layers", whether or not the layers are scanned.
    """

    inputs: ClassVar[tuple[str, ...]] = ("tokens", "positions", "segments")
    class_bias: ClassVar[bool] = False

    kv_heads: int
    head_size: int
    query_size: int
    norm: str
    norm_offset: float
    final_norm_epsilon: float
    placement: str
    positions: str
    position_axes: tuple[int, ...]
    rope_theta: float
    rope_scaling: tuple[float, ...]
    scale_embedding: bool
    start_row: bool
    bidirectional: bool
    attention: tuple[str, ...]
    attention_bias: bool
    output_bias: bool
    qk_norm: bool
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

    def setup(self):
        names = "vocab", "embed"
        self.tokens = self._table("tokens", normal(self.init_std, *names), self.input_vocab_size)
        init = normal(self.position_init_std, "positions", "embed")
        if self.positions == "learned":
            self.position_table = self._table("positions", init, self.context)
        if self.positions == "factorised":
            self.position_tables = [
                self._table(f"positions_{i}", init, size) for i, size in enumerate(self.position_axes)
            ]
        self.make_layers()
        # Post-norm layers end with a norm; "replace" leaves the sum unnormed.
        if self.placement == "pre":
            self.final_norm = self._norm(self.final_norm_epsilon or self.norm_epsilon)()
        if not self.tied_head and self.has_token_head:
            # No embedding table: it multiplies, so scaling laws count it.
            init = normal(self.head_init_std, *names)
            self.head = self.param("head", init, (self.vocab_size, self.width), self.param_dtype)
        if self.head_bias and self.has_token_head:
            self.bias = self.vocab_bias()

    def __call__(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        branches: jax.Array | None = None,
        carried: Mapping[str, Any] | None = None,
        row: jax.Array | None = None,
        train: bool = False,
        layers: bool = False,
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D] in `dtype`, after the last norm.

        positions [B, T]: counted from 0 in each document; by default from the row's first token, or from the end of
            the cache.
        segments [B, T]: documents of a row; a token sees its own alone, and 0 is padding.
        branches [B, T]: 0 for the beginning of a document, then 1, 2, ... for texts that each continue it: they see
            the beginning and themselves. Only where `has_branches`, without `carried`.
        carried: what `init_cache` or the call before returned. Then segments only mark padding, at the right end of a
            prompt, with 0.
        layers: whether to return the states of all layers.
        """
        length = tokens.shape[1]
        carried = dict(carried or {})
        cache = carried.get("attention")
        self.check_length(length)
        assert branches is None or (self.has_branches and cache is None)
        if cache is None:
            # A branch has a lower rank than those before it, so it does not see their keys.
            ranks = None if branches is None else jnp.where(branches == 0, 0, MAX_BRANCHES - branches)
            queries = None if branches is None else ranks + 1
            mask = Mask(causal=self.causal, query_segments=segments, query_ranks=queries, key_ranks=ranks)
            slots = jnp.arange(length)
        else:
            # Each row continues where its own text ends: query i is at column lengths + i of the cache.
            self.check_length(length, cache.capacity)
            mask, slots = Mask(causal=True, offset=cache.lengths), cache.slots(length)
        positions = jnp.broadcast_to(slots, tokens.shape) if positions is None else positions

        x = self._embed(tokens, positions)
        row = jnp.arange(len(tokens)) if row is None else row
        rates = self.dropout_embedding, self.dropout_attention, self.dropout_residual, self.dropout_ff
        key = self.dropout_key(train, *rates)
        x = dropout(x, self.dropout_embedding, key, row)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        context, keep = Context(mask, row, positions, train=train), layers or self.mixes
        x, carried, states = self.stack(self.stacked, x, context, carried, key, keep)
        if self.placement == "pre":
            x = self.final_norm(x)
        if cache is not None:
            carried["attention"] = carried["attention"].advance(length, segments)
        output = self.output(x, carried, states)
        self.init_heads(output.hidden)
        return output

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Inputs of the output head: hidden [..., D], matrix [V, D], bias [V] or None."""
        table = self.tokens[: self.vocab_size] if self.start_row else self.tokens  # the start symbol is never predicted
        return hidden, table if self.tied_head else self.head, self.bias if self.head_bias else None

    def init_cache(self, rows: int, length: int) -> dict[str, Cache]:
        """An empty cache for `rows` texts of up to `length` tokens, prompt included."""
        if self.bidirectional:
            return super().init_cache(rows, length)
        self.check_length(length)
        sizes = self.query_size or self._head_size, self._head_size
        return {"attention": Cache.empty(self.layers, rows, length, self.kv_heads or self.heads, sizes, self.dtype)}

    @property
    def head_dropout(self) -> float:
        """Rate of dropout in the head of a task."""
        return self.dropout_residual

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        return not self.bidirectional

    @property
    def has_branches(self) -> bool:
        """Whether the call takes `branches`: sparse patterns count columns, which branches do not share."""
        return self.causal and all(isinstance(parse_pattern(one), Dense) for one in self.attention)

    @property
    def input_vocab_size(self) -> int:
        """Number of ids that can be read: those predicted, and a start symbol if there is one."""
        return self.vocab_size + self.start_row

    @property
    def _head_size(self) -> int:
        return self.head_size or self.width // self.heads

    def _table(self, name, init, size):
        return self.param(name, embedding_table(init), (size, self.width), self.param_dtype)

    def _embed(self, tokens, positions):
        """The sum of token and position vectors [B, T, D], in the parameters' float32 and cast once."""
        x = lookup(self.tokens, tokens)
        if self.scale_embedding:
            # Vaswani et al. 2017, section 3.4: rows drawn narrow get the size of the positions added to them.
            x = x * math.sqrt(self.width)
        if self.positions == "learned":
            x = x + jnp.take(self.position_table, positions, axis=0)
        if self.positions.startswith("sinusoid"):
            x = x + sinusoid(positions, self.width, self.positions == "sinusoid_concatenated")
        if self.positions == "factorised":
            # Digits of the position in mixed radix, the last axis first: channel, then column, then row of an image.
            for table in reversed(self.position_tables):
                x = x + jnp.take(table, positions % len(table), axis=0)
                positions = positions // len(table)
        return x.astype(self.dtype)

    def _norm(self, epsilon: float, axis: str = "embed"):
        gains = self.norm_init_mean, self.norm_init_std, self.norm_offset, axis
        return functools.partial(Norm, self.norm, epsilon, self.dtype, self.param_dtype, *gains)

    def _std(self, inputs: int, residual: bool = False) -> float:
        """Standard deviation of a matrix with so many inputs at initialization; `residual`: the last of a branch."""
        # Variance gain / inputs keeps a sum over inputs at variance gain (Child et al. 2019).
        std = math.sqrt(self.init_gain / inputs) if self.init_gain else self.init_std
        return residual_std(std, self.layers) if residual and self.scale_residual_init else std

    def _block(self, pattern: str, backend: str) -> Block:
        std = self._std(self.width)
        attention = functools.partial(
            SelfAttention,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self._head_size,
            query_size=self.query_size,
            pattern=parse_pattern(pattern),
            rotary=self.positions == "rotary",
            rope_theta=self.rope_theta,
            rope_scaling=self.rope_scaling,
            qk_norm=self._norm(self.norm_epsilon, "head_size") if self.qk_norm else None,
            bias=self.attention_bias,
            output_bias=self.output_bias,
            dropout=self.dropout_attention,
            std=std,
            query_std=std,
            out_std=self._std(self.heads * self._head_size, residual=True),
            initializer=normal,
            fused_glorot=self.fused_glorot_init,
            backend=backend,
            **self._shared,
        )
        stds = {"std": std, "out_std": self._std(self.ff, residual=True)}
        feed_forward = self._feed_forward(bias=self.ff_bias, dropout=self.dropout_ff, initializer=normal, **stds)
        branches = {"attention": attention, "feed_forward": feed_forward}
        norm, residual = self._norm(self.norm_epsilon), self.dropout_residual
        return Block(branches, norm, self.placement, residual, self._adapter, parent=None)
