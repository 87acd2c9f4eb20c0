"""The encoder-decoder: one text in, hidden states of another that follows from it.

The original Transformer (Vaswani et al. 2017), T5 (Raffel et al. 2019) and BART (Lewis et al. 2019) are this model by
their fields: where norms stand, what has a bias, how positions are known, what is scaled, how parameters start.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.biases import ByBucket
from models.attention.masks import Mask
from models.attention.patterns import parse_pattern
from models.errors import ModelError
from models.layers.dropout import dropout
from models.layers.embedding import looked_up
from models.layers.init import constant, normal, uniform
from models.layers.norm import Norm
from models.layers.parameter import picked
from models.layers.positions import sinusoid
from models.layers.starts import STARTS
from models.transformer.block import Block
from models.transformer.cache import Cache
from models.transformer.context import Signals, Source
from models.transformer.cross_attention import CrossAttention
from models.transformer.layer_stack import Stack, stack_param
from models.transformer.mlp import FeedForward
from models.transformer.model import Model
from models.transformer.output import Output
from models.transformer.self_attention import SelfAttention
from models.transformer.source import SourceCache

SITES = ("inputs", "encoder", "encoded", "tokens", "decoder", "hidden")  # where dropout draws, each by a key of its own
POSITIONS = ("buckets", "learned", "sinusoid")


class EncoderDecoder(Model):
    """The fields are the keys of `configs.common.encoder_decoder()`, which explains and defaults them.

    Parameters of the layers are stored stacked, [L, ...] under "layers" of "encoder" and "decoder". Both stacks read
    one token table. Positions are known by buckets of distances, a bias on self-attention's scores for each head and
    bucket that all layers of a stack share; or by what is added to the tokens of a stack, a row of its own table for
    each position, or sinusoids.
    """

    causal: ClassVar[bool] = False

    context: int
    layers: int
    decoder_layers: int
    width: int
    heads: int
    head_size: int
    ff: int
    activation: str
    norm: str
    norm_epsilon: float
    placement: str
    embedding_norm: bool
    final_norm: bool
    positions: str
    position_offset: int
    buckets: int
    max_distance: int
    attention: tuple[str, ...]
    attention_path: str
    attention_bias: bool
    ff_bias: bool
    tied_head: bool
    head_bias: bool
    scale_embedding: bool
    scale_scores: bool
    scale_head: bool
    dropout: float
    dropout_attention: float
    dropout_ff: float
    dropout_hidden: float
    initialiser: str
    init_scale: float
    dtype: str
    param_dtype: str
    scan: bool
    remat: str

    def setup(self):
        names, shape = ("vocab", "embed"), (self.vocab_size, self.width)
        rows = self._start.table(self.init_scale, self.width)
        self.table = self.param("tokens", picked(normal(rows, *names)), shape, self.param_dtype)
        # Parameters do not depend on how attention is computed: the oracle makes them, whatever the named path refuses.
        path = "reference" if self.is_initializing() else self.attention_path
        self.encoder_stack, self.decoder_stack = self._encoder(path), self._decoder(path)
        self.encoder = stack_param(self, "encoder", self._init_stack, self._encoder("reference"))
        self.decoder = stack_param(self, "decoder", self._init_stack, self._decoder("reference"))
        self.encoder_bias, self.decoder_bias = self._bias("encoder_bias"), self._bias("decoder_bias")
        if not self.tied_head:
            start = self._start.initialiser(self._std(self.width, self.vocab_size), *names)
            self.head = self.param("head", start, shape, self.param_dtype)
        if self.head_bias:
            self.bias = self.param("head_bias", constant(0.0, "vocab"), (self.vocab_size,), self.param_dtype)
        self.encoder_positions = self._table("encoder_positions", rows)
        self.decoder_positions = self._table("decoder_positions", rows)
        self.encoder_embedding_norm, self.decoder_embedding_norm = self._norms(self.embedding_norm)
        self.encoder_norm, self.decoder_norm = self._norms(self.final_norm)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What of a batch the call takes: positions too, where they are added to the tokens."""
        sides = ("inputs", "input_segments", "input_positions"), ("tokens", "segments", "positions")
        return tuple(name for side in sides for name in side[: 2 + (self.positions != "buckets")])

    def __call__(
        self,
        tokens: jax.Array,
        *,
        inputs: jax.Array | None = None,
        input_segments: jax.Array | None = None,
        input_positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        carried: Mapping[str, Any] | None = None,
        row: jax.Array | None = None,
        train: bool = False,
    ) -> Output:
        """inputs [B, S] and tokens [B, T] int32 -> the decoder's hidden [B, T, D] in `dtype`, after its last norm.

        input_segments [B, S] and segments [B, T] keep the examples of a row apart: a token sees the inputs and the
        earlier tokens of its own example, and 0 is padding. Without `segments` all tokens are of the one example that
        the inputs which are not padding make up. input_positions [B, S] and positions [B, T] count from 0 in each
        example, by default from the row's first token, or on from the end of the cache. carried: what `start_decoding`
        or the call before gave, in place of inputs; then segments only tell tokens (nonzero) from the padding at the
        right end of a prompt. `train` turns dropout on; it draws from the rng named "dropout" and by row [B], each
        row's place in the whole global batch, by default its place in `tokens`.
        """
        carried = dict(carried or {})
        row = jnp.arange(len(tokens)) if row is None else row
        keys = self._keys(train)
        if carried:
            cache, source = carried["attention"], Source(None, Mask(key_valid=carried["cross_attention"].valid))
            mask = Mask(causal=True, offset=cache.lengths)
            self._check_length(tokens, cache.room, "a cache")
            positions = cache.slots(tokens.shape[1]) if positions is None else positions
        else:
            hidden = self._encode(inputs, input_segments, input_positions, keys, row, train)
            source, mask = Source(hidden, _seen(segments, input_segments)), Mask(causal=True, query_segments=segments)
        own = self.decoder_positions, self.decoder_embedding_norm
        x = self._embed(tokens, positions, *own, keys.get("tokens"), row)
        signals = Signals(mask, row, bias=self._by_bucket(self.decoder_bias, False), source=source, train=train)
        x, carried = self.decoder_stack(self.decoder["layers"], x, signals, carried, keys.get("decoder"))
        x = self._close(x, self.decoder_norm, keys.get("hidden"), row)
        if carried:
            carried["attention"] = carried["attention"].hold(tokens.shape[1], segments)
        return Output(x, carried)

    def encode(self, inputs: jax.Array, input_segments: jax.Array | None = None) -> jax.Array:
        """inputs [B, S] int32 -> the encoder's output [B, S, D], after its last norm; segments keep documents apart."""
        return self._encode(inputs, input_segments, None, {}, None, False)

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """What logits are made of: hidden [..., D], the matrix [V, D], and the bias [V] or None.

        A token table that is drawn wide meets, as a head, hidden states that are scaled by 1/sqrt(D) (`scale_head`).
        """
        bias = self.bias if self.head_bias else None
        if not self.tied_head:
            return hidden, self.head, bias
        return (hidden * self.width**-0.5 if self.scale_head else hidden), self.table, bias

    @property
    def limits(self) -> dict[str, int]:
        """Below what the numbers are of those inputs that index a table."""
        places = () if self.positions == "buckets" else ("input_positions", "positions")
        return super().limits | {"inputs": self.reads} | dict.fromkeys(places, self.context)

    def start_decoding(
        self, rows: int, length: int, inputs: jax.Array, input_segments: jax.Array | None = None
    ) -> dict[str, Cache | SourceCache]:
        """What is carried from token to token of up to `length`, prompt included: an empty cache for `rows` of them,
        and every layer's keys and values of the encoded inputs [rows, S].
        """
        hidden = self.encode(inputs, input_segments)
        branch = self._decoder("auto").blocks[0].branches["cross_attention"](parent=None)
        of_layer = functools.partial(branch.apply, method="keys_and_values")
        stacked = self.decoder["layers"]["cross_attention"]
        key, value = jax.vmap(lambda params: of_layer({"params": params}, hidden))(stacked)
        valid = jnp.ones(inputs.shape, bool) if input_segments is None else input_segments != 0
        empty = Cache.empty(self._decoder_depth, rows, length, self.heads, (self.head_size,) * 2, self.dtype)
        heads_first = jnp.swapaxes(key, 2, 3), jnp.swapaxes(value, 2, 3)
        return {"attention": empty, "cross_attention": SourceCache(*heads_first, valid)}

    def _encode(self, inputs, segments, positions, keys, row, train):
        if inputs is None:
            raise ModelError("an encoder-decoder needs inputs [B, S], or what start_decoding made of them, carried")
        own = self.encoder_positions, self.encoder_embedding_norm
        x = self._embed(inputs, positions, *own, keys.get("inputs"), row)
        bias = self._by_bucket(self.encoder_bias, True)
        signals = Signals(Mask(query_segments=segments), row, bias=bias, train=train)
        x, _ = self.encoder_stack(self.encoder["layers"], x, signals, {}, keys.get("encoder"))
        return self._close(x, self.encoder_norm, keys.get("encoded"), row)

    def _embed(self, tokens, positions, table, norm, key, row):
        """What a stack begins with; learned positions are in that side's `table`."""
        self._check_length(tokens, self.context, "model.context")
        x = looked_up(self.table, tokens)
        if self.scale_embedding:
            x = x * self.width**0.5
        if self.positions != "buckets":
            if positions is None:
                positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
            if table is None:
                x = x + sinusoid(positions, self.width)
            else:
                x = x + jnp.take(table, positions + self.position_offset, axis=0)
        x = x.astype(self.dtype)
        x = dropout(x if norm is None else norm(x), self.dropout, key, row)
        return nn.with_logical_constraint(x, ("batch", "length", None))

    def _close(self, x, norm, key, row):
        """What a stack ends with."""
        return dropout(x if norm is None else norm(x), self.dropout_hidden, key, row)

    def _check_length(self, tokens, limit, name):
        if tokens.shape[1] > limit:
            raise ModelError(f"{tokens.shape[1]} tokens do not fit {name} of {limit}; shorten the row or lengthen it")

    def _keys(self, train):
        """A key for each of SITES where dropout is on."""
        if not (train and any((self.dropout, self.dropout_attention, self.dropout_ff, self.dropout_hidden))):
            return {}
        return dict(zip(SITES, jax.random.split(self.make_rng("dropout"), len(SITES)), strict=True))

    def _by_bucket(self, table, both_ways):
        return None if table is None else ByBucket(table[None], both_ways, self.max_distance)

    def _bias(self, name):
        """A side's biases of buckets; None where positions are others."""
        if self.positions != "buckets":
            return None
        start = uniform(self.init_scale * math.sqrt(2 / (self.heads + self.buckets)), "heads", None, inputs=0)
        return self.param(name, start, (self.heads, self.buckets), self.param_dtype)

    def _table(self, name, rows):
        """A side's table of positions, its rows drawn as `rows` says; None where positions are not learned."""
        if self.positions != "learned":
            return None
        start, shape = picked(normal(rows, "positions", "embed")), (self.context + self.position_offset, self.width)
        return self.param(name, start, shape, self.param_dtype)

    @property
    def _start(self):
        return STARTS[self.initialiser]

    @property
    def _decoder_depth(self) -> int:
        return self.decoder_layers or self.layers

    def _std(self, inputs: int, outputs: int) -> float:
        """Standard deviation at the start of a matrix with so many inputs and outputs."""
        return self._start.matrix(self.init_scale, inputs, outputs)

    def _norm(self):
        return Norm(self.norm, self.norm_epsilon, 1.0, 0.0, self.dtype, self.param_dtype)

    def _norms(self, there: bool):
        """One for the encoder and one for the decoder, or none."""
        return (self._norm(), self._norm()) if there else (None, None)

    def _init_stack(self, key, stack):
        x = jnp.zeros((1, 1, self.width), self.dtype)
        bias = None
        if self.positions == "buckets":
            bias = ByBucket(jnp.zeros((1, self.heads, self.buckets)), True, self.max_distance)
        return {"layers": stack.init(key, x, Signals(Mask(), bias=bias, source=Source(x, Mask())))}

    def _encoder(self, path: str) -> Stack:
        """The encoder's layers, their attention computed by `path`."""
        blocks = tuple(self._block({"attention": self._self_attention(one, path)}) for one in self.attention)
        return Stack(blocks, self.layers, self.scan, self.remat)

    def _decoder(self, path: str) -> Stack:
        """The decoder's layers, their attention computed by `path`."""
        cross = functools.partial(CrossAttention, **self._attention(path))
        branches = {"attention": self._self_attention("dense", path), "cross_attention": cross}
        return Stack((self._block(branches),), self._decoder_depth, self.scan, self.remat)

    def _block(self, attention: Mapping) -> Block:
        """A block of these branches and of feed-forward, each with its norm."""
        feed_forward = functools.partial(
            FeedForward,
            width=self.width,
            ff=self.ff,
            activation=self.activation,
            bias=self.ff_bias,
            std=self._std(self.width, self.ff),
            out_std=self._std(self.ff, self.width),
            initialiser=self._start.initialiser,
            dropout=self.dropout_ff,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        norm = functools.partial(Norm, self.norm, self.norm_epsilon, 1.0, 0.0, self.dtype, self.param_dtype)
        return Block({**attention, "feed_forward": feed_forward}, norm, self.placement, self.dropout, parent=None)

    def _self_attention(self, pattern: str, path: str):
        return functools.partial(
            SelfAttention,
            kv_heads=self.heads,
            query_size=self.head_size,
            pattern=parse_pattern(pattern),
            rotary=False,
            fused_glorot=False,
            **self._attention(path),
        )

    def _attention(self, path: str) -> dict:
        """What self-attention and cross-attention have in common.

        Where scores are not scaled, queries start as much smaller: as matrices of so many more inputs.
        """
        inner = self.heads * self.head_size
        return {
            "width": self.width,
            "heads": self.heads,
            "head_size": self.head_size,
            "scale": None if self.scale_scores else 1.0,
            "bias": self.attention_bias,
            "dropout": self.dropout_attention,
            "query_std": self._std(self.width * (1 if self.scale_scores else self.head_size), inner),
            "std": self._std(self.width, inner),
            "out_std": self._std(inner, self.width),
            "initialiser": self._start.initialiser,
            "attention_path": path,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
        }


def _seen(segments, input_segments) -> Mask:
    """Which inputs each token sees."""
    if input_segments is None:
        return Mask()
    if segments is None:
        return Mask(key_valid=input_segments != 0)
    return Mask(query_segments=segments, key_segments=input_segments)
