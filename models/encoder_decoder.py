"""The encoder-decoder: one text in, hidden states of another that follows from it (T5: Raffel et al. 2019).

Neither stack knows positions but by a learned bias on its self-attention's scores, one number for each head and bucket
of distances, shared by its layers. There are no other biases, and no scores are scaled: the initial queries are small
instead.
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
from models.parts.dropout import dropout
from models.parts.initialisers import normal, uniform
from models.parts.norms import Norm
from models.parts.parameter import picked
from models.stack.block import Block
from models.stack.cache import Cache
from models.stack.cross_attention import CrossAttention
from models.stack.depth import Stack, stack_param
from models.stack.feed_forward import FeedForward
from models.stack.model import Model
from models.stack.output import Output
from models.stack.self_attention import SelfAttention
from models.stack.signals import Signals, Source
from models.stack.source import SourceCache

SITES = ("inputs", "encoder", "memory", "tokens", "decoder", "hidden")  # where dropout draws, each by a key of its own


class EncoderDecoder(Model):
    """The fields are the keys of `configs.common.encoder_decoder()`, which explains and defaults them.

    Parameters of the layers are stored stacked, [L, ...] under "layers" of "encoder" and "decoder". Both stacks read
    one token table.
    """

    inputs: ClassVar[tuple[str, ...]] = ("inputs", "input_segments", "tokens", "segments")
    causal: ClassVar[bool] = False

    context: int
    layers: int
    width: int
    heads: int
    head_size: int
    ff: int
    activation: str
    norm: str
    norm_epsilon: float
    buckets: int
    max_distance: int
    attention: tuple[str, ...]
    attention_path: str
    tied_head: bool
    dropout: float
    init_scale: float
    dtype: str
    param_dtype: str
    scan: bool
    remat: str

    def setup(self):
        names, shape = ("vocab", "embed"), (self.vocab_size, self.width)
        self.table = self.param("tokens", picked(normal(self.init_scale, *names)), shape, self.param_dtype)
        # Parameters do not depend on how attention is computed: the oracle makes them, whatever the named path refuses.
        path = "reference" if self.is_initializing() else self.attention_path
        self.encoder_stack, self.decoder_stack = self._encoder(path), self._decoder(path)
        self.encoder = stack_param(self, "encoder", self._init_stack, self._encoder("reference"))
        self.decoder = stack_param(self, "decoder", self._init_stack, self._decoder("reference"))
        self.encoder_bias, self.decoder_bias = (self._bias(name) for name in ("encoder_bias", "decoder_bias"))
        self.encoder_norm, self.decoder_norm = self._norm(), self._norm()
        if not self.tied_head:
            self.head = self.param("head", normal(self._std(self.width), *names), shape, self.param_dtype)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        inputs: jax.Array | None = None,
        input_segments: jax.Array | None = None,
        segments: jax.Array | None = None,
        carried: Mapping[str, Any] | None = None,
        row: jax.Array | None = None,
        train: bool = False,
    ) -> Output:
        """inputs [B, S] and tokens [B, T] int32 -> the decoder's hidden [B, T, D] in `dtype`, after its norm.

        input_segments [B, S] and segments [B, T] keep the examples of a row apart: a token sees the inputs and the
        earlier tokens of its own example, and 0 is padding. Without `segments` all tokens are of the one example that
        the inputs which are not padding make up. carried: what `start_decoding` or the call before gave, in place of
        inputs; then segments only tell tokens (nonzero) from the padding at the right end of a prompt. `train` turns
        dropout on; it draws from the rng named "dropout" and by row [B], each row's place in the whole global batch, by
        default its place in `tokens`.
        """
        carried = dict(carried or {})
        row = jnp.arange(len(tokens)) if row is None else row
        keys = self._keys(train)
        if carried:
            cache, source = carried["attention"], Source(None, Mask(key_valid=carried["cross_attention"].valid))
            mask = Mask(causal=True, offset=cache.lengths)
            self._check_length(tokens, cache.key.shape[2], "a cache")
        else:
            hidden = self._encode(inputs, input_segments, keys, row, train)
            source, mask = Source(hidden, _seen(segments, input_segments)), Mask(causal=True, query_segments=segments)
        x = self._embed(tokens, keys.get("tokens"), row)
        signals = Signals(mask, row, bias=self._by_bucket(self.decoder_bias, False), source=source, train=train)
        x, carried = self.decoder_stack(self.decoder["layers"], x, signals, carried, keys.get("decoder"))
        x = dropout(self.decoder_norm(x), self.dropout, keys.get("hidden"), row)
        if carried:
            carried["attention"] = carried["attention"].hold(tokens.shape[1], segments)
        return Output(x, carried)

    def encode(self, inputs: jax.Array, input_segments: jax.Array | None = None) -> jax.Array:
        """inputs [B, S] int32 -> the encoder's output [B, S, D], after its norm; segments keep documents apart."""
        return self._encode(inputs, input_segments, {}, None, False)

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, None]:
        """What logits are made of: hidden [..., D], the matrix [V, D], and no bias.

        The token table is drawn so wide that hidden states are scaled by 1/sqrt(D) before they meet it as a head.
        """
        if self.tied_head:
            return hidden * self.width**-0.5, self.table, None
        return hidden, self.head, None

    @property
    def limits(self) -> dict[str, int]:
        """Below what the numbers are of those inputs that index a table."""
        return super().limits | {"inputs": self.reads}

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
        empty = Cache.empty(self.layers, rows, length, self.heads, (self.head_size,) * 2, self.dtype)
        return {"attention": empty, "cross_attention": SourceCache(key, value, valid)}

    def _encode(self, inputs, segments, keys, row, train):
        if inputs is None:
            raise ModelError("an encoder-decoder needs inputs [B, S], or what start_decoding made of them, carried")
        x = self._embed(inputs, keys.get("inputs"), row)
        bias = self._by_bucket(self.encoder_bias, True)
        signals = Signals(Mask(query_segments=segments), row, bias=bias, train=train)
        x, _ = self.encoder_stack(self.encoder["layers"], x, signals, {}, keys.get("encoder"))
        return dropout(self.encoder_norm(x), self.dropout, keys.get("memory"), row)

    def _embed(self, tokens, key, row):
        self._check_length(tokens, self.context, "model.context")
        x = dropout(jnp.take(self.table, tokens, axis=0).astype(self.dtype), self.dropout, key, row)
        return nn.with_logical_constraint(x, ("batch", "length", None))

    def _check_length(self, tokens, limit, name):
        if tokens.shape[1] > limit:
            raise ModelError(f"{tokens.shape[1]} tokens do not fit {name} of {limit}; shorten the row or lengthen it")

    def _keys(self, train):
        """A key for each of SITES where dropout is on."""
        if not (train and self.dropout):
            return {}
        return dict(zip(SITES, jax.random.split(self.make_rng("dropout"), len(SITES)), strict=True))

    def _by_bucket(self, table, both_ways):
        return ByBucket(table[None], both_ways, self.max_distance)

    def _bias(self, name):
        start = uniform(self.init_scale * math.sqrt(2 / (self.heads + self.buckets)), "heads", None, inputs=0)
        return self.param(name, start, (self.heads, self.buckets), self.param_dtype)

    def _std(self, inputs: int) -> float:
        """Standard deviation at the start of a matrix with so many inputs."""
        return self.init_scale * inputs**-0.5

    def _norm(self):
        return Norm(self.norm, self.norm_epsilon, 1.0, 0.0, self.dtype, self.param_dtype)

    def _init_stack(self, key, stack):
        x = jnp.zeros((1, 1, self.width), self.dtype)
        bias = ByBucket(jnp.zeros((1, self.heads, self.buckets)), True, self.max_distance)
        return {"layers": stack.init(key, x, Signals(Mask(), bias=bias, source=Source(x, Mask())))}

    def _encoder(self, path: str) -> Stack:
        """The encoder's layers, their attention computed by `path`."""
        blocks = tuple(self._block({"attention": self._self_attention(one, path)}) for one in self.attention)
        return Stack(blocks, self.layers, self.scan, self.remat)

    def _decoder(self, path: str) -> Stack:
        """The decoder's layers, their attention computed by `path`."""
        cross = functools.partial(CrossAttention, bias=False, **self._attention(path))
        branches = {"attention": self._self_attention("dense", path), "cross_attention": cross}
        return Stack((self._block(branches),), self.layers, self.scan, self.remat)

    def _block(self, attention: Mapping) -> Block:
        """A block of these branches and of feed-forward, each behind its norm."""
        feed_forward = functools.partial(
            FeedForward,
            width=self.width,
            ff=self.ff,
            activation=self.activation,
            bias=False,
            std=self._std(self.width),
            out_std=self._std(self.ff),
            initialiser=normal,
            dropout=self.dropout,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        norm = functools.partial(Norm, self.norm, self.norm_epsilon, 1.0, 0.0, self.dtype, self.param_dtype)
        return Block({**attention, "feed_forward": feed_forward}, norm, "pre", self.dropout, parent=None)

    def _self_attention(self, pattern: str, path: str):
        return functools.partial(
            SelfAttention,
            kv_heads=self.heads,
            query_size=self.head_size,
            pattern=parse_pattern(pattern),
            rotary=False,
            bias=False,
            fused_glorot=False,
            **self._attention(path),
        )

    def _attention(self, path: str) -> dict:
        """What self-attention and cross-attention have in common."""
        return {
            "width": self.width,
            "heads": self.heads,
            "head_size": self.head_size,
            "scale": 1.0,
            "dropout": self.dropout,
            "query_std": self._std(self.width * self.head_size),
            "std": self._std(self.width),
            "out_std": self._std(self.heads * self.head_size),
            "initialiser": normal,
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
