"""Bidirectional encoders: BERT, RoBERTa, ALBERT, XLM (Devlin et al. 2018 and successors)."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.layers.backward import remat_elementwise
from models.layers.dropout import dropout
from models.layers.embedding import lookup
from models.layers.init import INITIALIZERS, TABLE_INITIALIZERS, embedding_table
from models.layers.linear import Linear
from models.layers.norm import Norm
from models.transformer.block import Block, Context
from models.transformer.layer_stack import Stack
from models.transformer.mlp import ACTIVATIONS
from models.transformer.model import Model, Output
from models.transformer.multihead import SelfAttention


class EncoderBase(Model):
    """Embeddings and a post-norm stack in which every token sees every other; subclasses add heads.

    Embeddings are the normed sum of token, position and, if there are types, type vectors, projected to the model's
    width if the tables have another (ALBERT's factorization, Lan et al. 2019, section 3.1). The token head is a
    product, an activation and a norm before the token table.
    """

    causal: ClassVar[bool] = False
    head_params: ClassVar[tuple[str, ...]] = (*Model.head_params, "transform", "transform_norm", "pooler", "pairs")
    summary_place: ClassVar[str] = "first"

    position_offset: int
    types: int
    embed: int
    project_always: bool
    groups: int
    attention: tuple[str, ...]
    dropout: float
    dropout_attention: float
    initialiser: str
    init_std: float

    def setup(self):
        self._make_tables()
        self.make_layers()

    def _make_tables(self):
        self.token_table = self._table("tokens", "vocab", self.vocab_size)
        self.position_table = self._table("positions", "positions", self.context + self.position_offset)
        if self.types:
            self.type_table = self._table("types", None, self.types)
        self.embedding_norm = self._norm()()

    def make_layers(self) -> None:
        """Create the projection of embeddings, if there is one, and the stack."""
        if self._projects:
            self.projection = self._linear({None: self.embed or self.width}, {"embed": self.width})
        super().make_layers()

    def _make_token_head(self):
        self.transform, self.transform_norm = self._head(self.embed or self.width), self._norm()()
        self.head_bias = self.vocab_bias()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the batch features that the call takes."""
        return ("tokens", *["types"] * bool(self.types), "positions", "segments")

    def __call__(
        self,
        tokens: jax.Array,
        *,
        types: jax.Array | None = None,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        carried: Mapping[str, Any] | None = None,
        row: jax.Array | None = None,
        train: bool = False,
        layers: bool = False,
        **more: jax.Array | None,
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D] in `dtype`. `more` goes to `embed_inputs`.

        types [B, T]: which text of a pair a token is in, by default 0.
        positions [B, T]: counted from 0 in each document, by default from the row's first token.
        segments [B, T]: documents of a row; a token sees its own alone, and 0 is padding.
        layers: whether to return the states of all layers.
        """
        self.check_length(tokens.shape[1])
        embedded = self.embed_inputs(tokens, types, positions, **more)
        return self.encode(embedded, segments=segments, carried=carried, row=row, train=train, layers=layers)

    def encode(self, embedded, *, segments=None, carried=None, row=None, train=False, layers=False) -> Output:
        """Run embeddings [B, T, E] through the stack; arguments as for the call."""
        row = jnp.arange(len(embedded)) if row is None else row
        key = self.dropout_key(train, self.dropout, self.dropout_attention)
        x = dropout(embedded, self.dropout, key, row)
        if self._projects:
            x = self.projection(x)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        context = Context(Mask(query_segments=segments), row, train=train)
        return self.output(*self.stack(self.stacked, x, context, carried or {}, key, layers or self.mixes))

    def embed_inputs(self, tokens, types=None, positions=None, more: jax.Array | None = None) -> jax.Array:
        """The normed sum of the embeddings [B, T, E] and of `more`, which has the same shape."""
        x = lookup(self.token_table, tokens)
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape) if positions is None else positions
        # RoBERTa's table begins with two rows that no token uses, a legacy of fairseq's padding id.
        x = x + jnp.take(self.position_table, positions + self.position_offset, axis=0)
        if self.types:
            x = x + jnp.take(self.type_table, jnp.zeros_like(tokens) if types is None else types, axis=0)
        if more is not None:
            x = x + more
        # Summed in float32: the norm sees one rounding to `dtype`, not four.
        return self.embedding_norm(x.astype(self.dtype))

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Inputs of the output head: hidden [..., E] after the transform, matrix [V, E], bias [V]."""
        return self.token_head_inputs(hidden, self.token_table)

    def token_head_inputs(self, hidden: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`head_inputs` with the token table `table` [V, E]."""
        activation = remat_elementwise(ACTIVATIONS[self.activation])
        return self.transform_norm(activation(self.transform(hidden))), table, self.head_bias

    @property
    def input_limits(self) -> dict[str, int]:
        """For each input that indexes a table, the number of rows."""
        return super().input_limits | ({"types": self.types} if self.types else {})

    @property
    def _projects(self) -> bool:
        return self.project_always or self.embed not in (0, self.width)

    def _table(self, name, axis, size):
        init = embedding_table(TABLE_INITIALIZERS[self.initialiser](self.init_std, axis, "embed"))
        return self.param(name, init, (size, self.embed or self.width), self.param_dtype)

    def _head(self, outputs: int) -> Linear:
        return self._linear({"embed": self.width}, {None: outputs})

    def _linear(self, inputs: Mapping, outputs: Mapping) -> Linear:
        shared = {"std": self._std(*inputs.values()), "dtype": self.dtype, "param_dtype": self.param_dtype}
        return Linear(inputs, outputs, bias=True, initializer=INITIALIZERS[self.initialiser], **shared)

    def _std(self, *inputs: int) -> float:
        """Standard deviation of a matrix with these input axes at initialization."""
        # PyTorch's default for linear layers is U(-a, a) with a = 1/sqrt(inputs), whose variance is a^2 / 3.
        return 1 / math.sqrt(3 * math.prod(inputs)) if self.initialiser == "fan_in" else self.init_std

    def _norm(self) -> functools.partial:
        return functools.partial(Norm, "layer", self.norm_epsilon, self.dtype, self.param_dtype)

    def build_stack(self, backend: str) -> Stack:
        """As `Model`, with `groups` sets of parameters."""
        return dataclasses.replace(super().build_stack(backend), groups=self.groups)

    def _block(self, pattern: str, backend: str) -> Block:
        std = self._std(self.width)
        shared = {"std": std, "bias": True, "initializer": INITIALIZERS[self.initialiser]}
        attention = functools.partial(
            SelfAttention,
            heads=self.heads,
            head_size=self.width // self.heads,
            pattern=parse_pattern(pattern),
            dropout=self.dropout_attention,
            query_std=std,
            out_std=std,
            backend=backend,
            **shared,
            **self._shared,
        )
        # BERT drops nothing inside the feed-forward block.
        feed_forward = self._feed_forward(dropout=0.0, out_std=self._std(self.ff), **shared)
        branches = {"attention": attention, "feed_forward": feed_forward}
        return Block(branches, self._norm(), "post", self.dropout, self._adapter, parent=None)


class Encoder(EncoderBase):
    """BERT's encoder with its heads. Fields are the keys of `configs.common.encoder()`, which documents them.

    The head of masked tokens is always there; `pair_head` adds next-sentence prediction from the first token's state.
    XLM (Lample and Conneau 2019) has a table of languages, no transform in its token head, and zeros as hidden states
    of padding.
    """

    languages: int
    head_transform: bool
    zero_padding: bool
    pair_head: bool

    def setup(self):
        self._make_tables()
        if self.languages:
            self.language_table = self._table("languages", None, self.languages)
        self.make_layers()
        if self.has_token_head and self.head_transform:
            self._make_token_head()
        elif self.has_token_head:
            self.head_bias = self.vocab_bias()
        if self.pair_head:
            self.pooler, self.pairs = self._head(self.width), self._head(2)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the batch features that the call takes."""
        return (*super().inputs, *["languages"] * bool(self.languages))

    @property
    def has_nsp_head(self) -> bool:
        """Whether `pair_logits` predicts that the second text follows the first."""
        return self.pair_head

    @property
    def input_limits(self) -> dict[str, int]:
        """For each input that indexes a table, the number of rows."""
        return super().input_limits | ({"languages": self.languages} if self.languages else {})

    def __call__(self, tokens: jax.Array, *, languages: jax.Array | None = None, **options) -> Output:
        """As `EncoderBase`; languages [B, T]: the language of each token, by default 0."""
        more = None
        if self.languages:
            more = jnp.take(self.language_table, jnp.zeros_like(tokens) if languages is None else languages, axis=0)
        output = super().__call__(tokens, more=more, **options)
        if self.zero_padding and options.get("segments") is not None:
            # XLM's code zeroes padding after every layer; no other state sees it, so once at the end is the same.
            real = (options["segments"] > 0)[..., None]
            # Of all layers too, where they were asked for.
            output = jax.tree.map(lambda x: jnp.where(jnp.broadcast_to(real, x.shape), x, 0), output)
        if self.is_initializing() and self.has_token_head:  # Flax creates parameters where they are first called
            self.head_inputs(output.hidden)
            if self.pair_head:
                self.pair_logits(output.hidden)
        self.init_heads(output.hidden)
        return output

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Inputs of the output head: hidden [..., E] after the transform, if there is one, matrix [V, E], bias [V]."""
        return super().head_inputs(hidden) if self.head_transform else (hidden, self.token_table, self.head_bias)

    @property
    def pooling_layer(self) -> Linear | None:
        """The pooler's layer, which next-sentence prediction trains."""
        return self.pooler if self.pair_head else None

    def pooled(self, hidden: jax.Array) -> jax.Array:
        """hidden [B, T, D] -> [B, D]: the row's vector, from its first token ([CLS])."""
        # Next-sentence prediction reads [CLS] alone (Devlin et al. 2018, section 3.1).
        return jnp.tanh(self.pooler(hidden[:, 0]))

    def pair_logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [B, T, D] -> logits [B, 2] float32: the second text follows the first (0) or not (1)."""
        return self.pairs(self.pooled(hidden)).astype(jnp.float32)
