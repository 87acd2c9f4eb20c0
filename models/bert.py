"""The encoder: every token sees every other, and masked ones are predicted (BERT, Devlin et al. 2018, and its kin)."""

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
from models.errors import ModelError
from models.layers.activations import ACTIVATIONS
from models.layers.dropout import dropout
from models.layers.embedding import looked_up
from models.layers.init import INITIALISERS, TABLES, constant
from models.layers.linear import Linear
from models.layers.norm import Norm
from models.layers.parameter import picked
from models.layers.remat import light
from models.transformer.block import Block
from models.transformer.context import Signals
from models.transformer.layer_stack import Stack
from models.transformer.mlp import FeedForward
from models.transformer.model import Model
from models.transformer.output import Output
from models.transformer.self_attention import SelfAttention


class Bidirectional(Model):
    """Embeddings and a stack in which every token sees every other; a subclass says what reads its states.

    Embeddings are the sum of a token's, its position's and, if there are types, its type's, normed, and projected to
    the model's width where the tables are of another; blocks have their norms after the residual. The head of tokens,
    if there is one, is a product, an activation and a norm before the token table.
    """

    causal: ClassVar[bool] = False

    context: int
    position_offset: int
    types: int
    embed: int
    project_always: bool
    layers: int
    groups: int
    width: int
    heads: int
    ff: int
    activation: str
    norm_epsilon: float
    attention: tuple[str, ...]
    attention_path: str
    dropout: float
    dropout_attention: float
    initialiser: str
    init_std: float
    dtype: str
    param_dtype: str
    scan: bool
    remat: str

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
        """Of `setup`: what projects embeddings, if that is there, and the stack."""
        if self._projects:
            self.projection = self._linear({None: self.embed or self.width}, {"embed": self.width})
        super().make_layers()

    def _make_token_head(self):
        self.transform, self.transform_norm = self._head(self.embed or self.width), self._norm()()
        self.head_bias = self.param("head_bias", constant(0.0, "vocab"), (self.vocab_size,), self.param_dtype)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The features of a batch that it takes."""
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
        **more: jax.Array | None,
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D] in `dtype`. `more` is what else a subclass embeds.

        types [B, T] tell the two texts of a pair apart, where there are types; the default is the first everywhere.
        positions [B, T] count from 0 in each document, by default from the row's first token. segments [B, T] keep
        documents of one row apart: a token sees all of its own segment and nothing else, and 0 is padding. `train`
        turns dropout on; it draws from the rng named "dropout" and by row [B], each row's place in the whole global
        batch, by default its place in `tokens`. Nothing is carried.
        """
        length = tokens.shape[1]
        if length > self.context:
            raise ModelError(
                f"{length} tokens do not fit context={self.context}; shorten the row or raise model.context"
            )
        embedded = self.embedded(tokens, types, positions, **more)
        return self.encoded(embedded, segments=segments, carried=carried, row=row, train=train)

    def encoded(self, embedded: jax.Array, *, segments=None, carried=None, row=None, train: bool = False) -> Output:
        """What becomes of embeddings [B, T, E], with the arguments of the call."""
        row = jnp.arange(len(embedded)) if row is None else row
        key = self.make_rng("dropout") if train and (self.dropout or self.dropout_attention) else None
        x = dropout(embedded, self.dropout, key, row)
        if self._projects:
            x = self.projection(x)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        signals = Signals(Mask(query_segments=segments), row, train=train)
        return Output(*self.stack(self.stacked, x, signals, carried or {}, key))

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What logits of tokens are made of: hidden [..., D] transformed [..., E], matrix [V, E], bias [V]."""
        return self.token_head(hidden, self.token_table)

    def token_head(self, hidden: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What logits of tokens are made of, as `head_inputs` gives it, with the token table `table` [V, E]."""
        return self.transform_norm(light(ACTIVATIONS[self.activation])(self.transform(hidden))), table, self.head_bias

    def example(self) -> dict[str, jax.Array]:
        """The smallest inputs: one row of one token."""
        return super().example() | ({"types": jnp.zeros((1, 1), jnp.int32)} if self.types else {})

    @property
    def limits(self) -> dict[str, int]:
        """Below what the numbers are of those inputs that index a table."""
        return super().limits | {"positions": self.context} | ({"types": self.types} if self.types else {})

    def start_decoding(self, rows: int, length: int):
        """Raises ModelError: every token's state depends on those that follow it."""
        raise ModelError(
            "a model that sees both sides of a token fills in masks and cannot go on with a text; train a decoder for "
            "that"
        )

    @property
    def _projects(self) -> bool:
        return self.project_always or self.embed not in (0, self.width)

    def embedded(self, tokens, types=None, positions=None, more: jax.Array | None = None) -> jax.Array:
        """The normed sum of the embeddings, [B, T, E], and of `more`, likewise; the others are the call's."""
        x = looked_up(self.token_table, tokens)
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape) if positions is None else positions
        x = x + jnp.take(self.position_table, places + self.position_offset, axis=0)
        if self.types:
            x = x + jnp.take(self.type_table, jnp.zeros_like(tokens) if types is None else types, axis=0)
        elif types is not None:
            raise ModelError("an encoder with model.types = 0 tells no texts apart; give it no types, or raise it to 2")
        if more is not None:
            x = x + more
        return self.embedding_norm(x.astype(self.dtype))

    def _table(self, name, axis, size):
        start = picked(TABLES[self.initialiser](self.init_std, axis, "embed"))
        return self.param(name, start, (size, self.embed or self.width), self.param_dtype)

    def _head(self, outputs: int) -> Linear:
        """A product from the model's width, of one head."""
        return self._linear({"embed": self.width}, {None: outputs})

    def _linear(self, inputs: Mapping, outputs: Mapping) -> Linear:
        """A product over named axes: those of one head, or of embeddings, are no axes of the mesh."""
        shared = {"std": self._std(*inputs.values()), "dtype": self.dtype, "param_dtype": self.param_dtype}
        return Linear(inputs, outputs, bias=True, initialiser=INITIALISERS[self.initialiser], **shared)

    def _std(self, *inputs: int) -> float:
        """Standard deviation of a matrix of so many inputs at the start."""
        return 1 / math.sqrt(3 * math.prod(inputs)) if self.initialiser == "fan_in" else self.init_std

    def _norm(self) -> functools.partial:
        return functools.partial(Norm, "layer", self.norm_epsilon, 1.0, 0.0, self.dtype, self.param_dtype)

    def _init_stack(self, key):
        x = jnp.zeros((1, 1, self.width), self.dtype)
        return self.stack_by("reference").init(key, x, Signals(Mask()))

    def stack_by(self, path: str) -> Stack:
        """As `Model`, of `groups` sets of parameters."""
        return dataclasses.replace(super().stack_by(path), groups=self.groups)

    def _block(self, pattern: str, path: str) -> Block:
        """The block of a layer whose attention follows `pattern`, computed by `path`."""
        std = self._std(self.width)
        shared = {"width": self.width, "std": std, "bias": True}
        shared |= {"initialiser": INITIALISERS[self.initialiser], "dtype": self.dtype, "param_dtype": self.param_dtype}
        size = self.width // self.heads
        attention = functools.partial(
            SelfAttention,
            heads=self.heads,
            kv_heads=self.heads,
            head_size=size,
            query_size=size,
            pattern=parse_pattern(pattern),
            rotary=False,
            dropout=self.dropout_attention,
            attention_path=path,
            fused_glorot=False,
            query_std=std,
            out_std=std,
            scale=None,
            **shared,
        )
        sizes = {"ff": self.ff, "activation": self.activation, "out_std": self._std(self.ff)}
        feed_forward = functools.partial(FeedForward, dropout=0.0, **sizes, **shared)
        branches = {"attention": attention, "feed_forward": feed_forward}
        return Block(branches, self._norm(), "post", self.dropout, parent=None)


class Encoder(Bidirectional):
    """BERT's encoder: its head of masked tokens, and if there is one that of pairs, which reads the first token through
    a product and tanh. The fields are the keys of `configs.common.encoder()`.

    XLM (Lample and Conneau 2019) has a table of languages besides, a head without what comes before the token table,
    and hidden states of padding that are zero. Its own code makes them so after every layer, which no other state sees.
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
        if self.head_transform:
            self._make_token_head()
        else:
            self.head_bias = self.param("head_bias", constant(0.0, "vocab"), (self.vocab_size,), self.param_dtype)
        if self.pair_head:
            self.pooler, self.pairs = self._head(self.width), self._head(2)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The features of a batch that it takes."""
        return (*super().inputs, *["languages"] * bool(self.languages))

    @property
    def tells_pairs(self) -> bool:
        return self.pair_head

    @property
    def limits(self) -> dict[str, int]:
        """Below what the numbers are of those inputs that index a table."""
        return super().limits | ({"languages": self.languages} if self.languages else {})

    def example(self) -> dict[str, jax.Array]:
        """The smallest inputs: one row of one token."""
        return super().example() | ({"languages": jnp.zeros((1, 1), jnp.int32)} if self.languages else {})

    def embedded(self, tokens, types=None, positions=None, languages=None) -> jax.Array:
        """As `Bidirectional`, with the rows of the table of languages, where there is one; the default is the first."""
        if not self.languages:
            if languages is not None:
                raise ModelError("an encoder with model.languages = 0 has no table of them; give it none, or raise it")
            return super().embedded(tokens, types, positions)
        languages = jnp.zeros_like(tokens) if languages is None else languages
        return super().embedded(tokens, types, positions, jnp.take(self.language_table, languages, axis=0))

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What logits of tokens are made of: hidden [..., D] as transformed, if it is, matrix [V, E], bias [V]."""
        return super().head_inputs(hidden) if self.head_transform else (hidden, self.token_table, self.head_bias)

    def __call__(self, tokens: jax.Array, *, languages: jax.Array | None = None, **given) -> Output:
        """As `Bidirectional`; languages [B, T] say which each token is of, where there is a table of them."""
        output = super().__call__(tokens, languages=languages, **given)
        if self.zero_padding and given.get("segments") is not None:
            there = (given["segments"] > 0)[..., None]
            output = output.replace(hidden=jnp.where(there, output.hidden, jnp.zeros((), output.hidden.dtype)))
        if self.is_initializing():  # the heads, whose parameters are made where they are first used
            self.head_inputs(output.hidden)
            if self.pair_head:
                self.pair_logits(output.hidden)
        return output

    def pooled(self, hidden: jax.Array) -> jax.Array:
        """hidden [B, T, D] -> [B, D]: what stands for the whole row, made of its first token."""
        return jnp.tanh(self.pooler(hidden[:, 0]))

    def pair_logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [B, T, D] -> logits [B, 2] float32 of whether the second text of a pair follows (0) or not (1)."""
        return self.pairs(self.pooled(hidden)).astype(jnp.float32)
