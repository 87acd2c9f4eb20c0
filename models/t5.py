"""Encoder-decoders: the original Transformer, T5 and BART (Vaswani et al. 2017; Raffel et al. 2019; Lewis et al. 2019).

One class serves all three. Its fields say where norms are, what has a bias, how positions enter, what is scaled, and
how parameters start.
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
from models.layers.dropout import dropout
from models.layers.embedding import lookup, sinusoid
from models.layers.init import INIT_SCHEMES, embedding_table, normal, uniform
from models.layers.norm import Norm
from models.transformer.block import Block, Context, Source
from models.transformer.cache import Cache, SourceCache
from models.transformer.layer_stack import Stack, stack_param
from models.transformer.model import Model, Output
from models.transformer.multihead import CrossAttention, SelfAttention

DROPOUT_SITES = ("inputs", "encoder", "encoded", "tokens", "decoder", "hidden")  # each has its own key
POSITIONS = ("buckets", "learned", "sinusoid")


class EncoderDecoder(Model):
    """Fields are the keys of `configs.common.encoder_decoder()`, which documents them.

    Parameters of the layers are stored stacked, [L, ...] under "layers" of "encoder" and "decoder". Both stacks read
    one token table. `positions`: "buckets" adds a bias for each head and bucket of distances to the scores of
    self-attention, shared by the layers of a stack (T5); "learned" and "sinusoid" add vectors to the tokens.
    """

    causal: ClassVar[bool] = False
    final_norms: ClassVar[tuple[str, ...]] = ("encoder_norm", "decoder_norm")

    decoder_layers: int
    head_size: int
    norm: str
    placement: str
    embedding_norm: bool
    final_norm: bool
    positions: str
    position_offset: int
    buckets: int
    max_distance: int
    attention: tuple[str, ...]
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

    def setup(self):
        names, shape = ("vocab", "embed"), (self.vocab_size, self.width)
        table_std = self._scheme.table_std(self.init_scale, self.width)
        self.table = self.param("tokens", embedding_table(normal(table_std, *names)), shape, self.param_dtype)
        # Parameters do not depend on how attention is computed, so the reference backend initializes them.
        backend = "reference" if self.is_initializing() else self.attention_path
        self.encoder_stack, self.decoder_stack = self._encoder(backend), self._decoder(backend)
        self.encoder = stack_param(self, "encoder", self._init_stack, self._encoder("reference"))
        self.decoder = stack_param(self, "decoder", self._init_stack, self._decoder("reference"))
        self.encoder_bias, self.decoder_bias = self._bias("encoder_bias"), self._bias("decoder_bias")
        if not self.tied_head and self.has_token_head:
            init = self._scheme.initializer(self._std(self.width, self.vocab_size), *names)
            self.head = self.param("head", init, shape, self.param_dtype)
        if self.head_bias and self.has_token_head:
            self.bias = self.vocab_bias()
        self.encoder_positions = self._table("encoder_positions", table_std)
        self.decoder_positions = self._table("decoder_positions", table_std)
        self.encoder_embedding_norm, self.decoder_embedding_norm = self._norms(self.embedding_norm)
        self.encoder_norm, self.decoder_norm = self._norms(self.final_norm)
        self.make_mix()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the batch features that the call takes."""
        # Buckets are of distances, which do not depend on where a row's example begins.
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
        layers: bool = False,
    ) -> Output:
        """inputs [B, S] and tokens [B, T] int32 -> the decoder's hidden [B, T, D] in `dtype`, after its last norm.

        input_segments [B, S], segments [B, T]: examples of a row; a token sees the inputs and the earlier tokens of the
            same example, and 0 is padding. Without `segments` a row is one example.
        input_positions [B, S], positions [B, T]: counted from 0 in each example; by default from the row's first token,
            or from the cache's end.
        carried: what `init_cache` or the call before returned, in place of inputs. Then segments only mark padding, at
            the right end of a prompt, with 0.
        layers: whether to return the states of all layers of both stacks.
        """
        carried = dict(carried or {})
        row = jnp.arange(len(tokens)) if row is None else row
        keys, source_layers = self._keys(train), None
        if carried:
            # Keys and values of the inputs are in the cache, so the encoder does not run.
            cache, source = carried["attention"], Source(None, Mask(key_valid=carried["cross_attention"].valid))
            mask = Mask(causal=True, offset=cache.lengths)
            self.check_length(tokens.shape[1], cache.capacity)
            positions = cache.slots(tokens.shape[1]) if positions is None else positions
        else:
            hidden, source_layers = self._encode(inputs, input_segments, input_positions, keys, row, train, layers)
            source = Source(hidden, _source_mask(segments, input_segments))
            mask = Mask(causal=True, query_segments=segments)
        # The decoder's own tables and norms; the token table is the encoder's too.
        own = self.decoder_positions, self.decoder_embedding_norm
        x = self._embed(tokens, positions, *own, keys.get("tokens"), row)
        bias = self._bucket_bias(self.decoder_bias, both_ways=False)
        context = Context(mask, row, bias=bias, source=source, train=train)
        key, keep = keys.get("decoder"), layers or self.mixes
        x, carried, states = self.decoder_stack(self.decoder["layers"], x, context, carried, key, keep)
        x = self._end_stack(x, self.decoder_norm, keys.get("hidden"), row)
        if carried:
            carried["attention"] = carried["attention"].advance(tokens.shape[1], segments)
        output = self.output(x, carried, states, source_layers)
        self.init_heads(output.hidden)
        return output

    def encode(self, inputs: jax.Array, input_segments: jax.Array | None = None) -> jax.Array:
        """inputs [B, S] int32 -> the encoder's output [B, S, D], after its last norm."""
        return self._encode(inputs, input_segments, None, {}, None, False)[0]

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Inputs of the output head: hidden [..., D], matrix [V, D], bias [V] or None."""
        bias = self.bias if self.head_bias else None
        if not self.tied_head:
            return hidden, self.head, bias
        # T5's table has rows of variance 1: without 1/sqrt(D), logits of normed states would have variance D = 768.
        return (hidden * self.width**-0.5 if self.scale_head else hidden), self.table, bias

    def init_cache(
        self, rows: int, length: int, inputs: jax.Array, input_segments: jax.Array | None = None
    ) -> dict[str, Cache | SourceCache]:
        """An empty cache for `rows` texts of up to `length` tokens, prompt included, and keys and values of the inputs.

        inputs [rows, S] are encoded here, once; every layer's cross-attention reads its keys and values from the cache.
        """
        hidden = self.encode(inputs, input_segments)
        branch = self._decoder("auto").blocks[0].branches["cross_attention"](parent=None)
        project = functools.partial(branch.apply, method="keys_and_values")
        stacked = self.decoder["layers"]["cross_attention"]
        key, value = jax.vmap(lambda params: project({"params": params}, hidden))(stacked)  # [L, B, S, N, H]
        valid = jnp.ones(inputs.shape, bool) if input_segments is None else input_segments != 0
        empty = Cache.empty(self._decoder_depth, rows, length, self.heads, (self.head_size,) * 2, self.dtype)
        # Heads before positions, as attention's products read them: transposed once, not at each token.
        heads_first = jnp.swapaxes(key, 2, 3), jnp.swapaxes(value, 2, 3)
        return {"attention": empty, "cross_attention": SourceCache(*heads_first, valid)}

    def _encode(self, inputs, segments, positions, keys, row, train, keep=False):
        """(the encoder's output, the states of all layers if `keep` else None)."""
        own = self.encoder_positions, self.encoder_embedding_norm
        x = self._embed(inputs, positions, *own, keys.get("inputs"), row)
        # Half of the encoder's buckets are for keys after the query; the decoder has none there.
        bias = self._bucket_bias(self.encoder_bias, both_ways=True)
        context = Context(Mask(query_segments=segments), row, bias=bias, train=train)
        x, _, states = self.encoder_stack(self.encoder["layers"], x, context, {}, keys.get("encoder"), keep)
        x = self._end_stack(x, self.encoder_norm, keys.get("encoded"), row)
        return x, None if states is None else jnp.concatenate([states[:-1], x[None]])

    def _embed(self, tokens, positions, table, norm, key, row):
        """Input of a stack, whose learned positions are in `table`."""
        self.check_length(tokens.shape[1])
        x = lookup(self.table, tokens)
        if self.scale_embedding:
            x = x * self.width**0.5
        if self.positions != "buckets":
            if positions is None:
                positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
            if table is None:
                x = x + sinusoid(positions, self.width)
            else:
                # BART's tables begin with two rows that no token uses, a legacy of fairseq's padding id.
                x = x + jnp.take(table, positions + self.position_offset, axis=0)
        x = x.astype(self.dtype)
        x = dropout(x if norm is None else norm(x), self.dropout, key, row)
        return nn.with_logical_constraint(x, ("batch", "length", None))

    def _end_stack(self, x, norm, key, row):
        """Norm and dropout at the end of a stack."""
        return dropout(x if norm is None else norm(x), self.dropout_hidden, key, row)

    def _keys(self, train):
        """{site: key} if dropout is on, else {}."""
        key = self.dropout_key(train, self.dropout, self.dropout_attention, self.dropout_ff, self.dropout_hidden)
        return {} if key is None else dict(zip(DROPOUT_SITES, jax.random.split(key, len(DROPOUT_SITES)), strict=True))

    def _bucket_bias(self, table, both_ways):
        return None if table is None else ByBucket(table[None], both_ways, self.max_distance)

    def _bias(self, name):
        """Create a stack's table [N, buckets], if it has one."""
        if self.positions != "buckets":
            return None
        # Glorot-uniform as a matrix from buckets to heads, but a bias: it does not decay.
        init = uniform(self.init_scale * math.sqrt(2 / (self.heads + self.buckets)), "heads", None, inputs=0)
        return self.param(name, init, (self.heads, self.buckets), self.param_dtype)

    def _table(self, name, std):
        if self.positions != "learned":
            return None
        init = embedding_table(normal(std, "positions", "embed"))
        return self.param(name, init, (self.context + self.position_offset, self.width), self.param_dtype)

    @property
    def _scheme(self):
        return INIT_SCHEMES[self.initialiser]

    @property
    def _decoder_depth(self) -> int:
        return self.decoder_layers or self.layers

    def _std(self, inputs: int, outputs: int) -> float:
        """Standard deviation of a matrix with so many inputs and outputs at initialization."""
        return self._scheme.matrix_std(self.init_scale, inputs, outputs)

    @property
    def _norm(self) -> functools.partial:
        return functools.partial(Norm, self.norm, self.norm_epsilon, self.dtype, self.param_dtype)

    def _norms(self, enabled: bool):
        """A norm for the encoder and one for the decoder, or None twice."""
        return (self._norm(), self._norm()) if enabled else (None, None)

    def _init_stack(self, key, stack):
        x = jnp.zeros((1, 1, self.width), self.dtype)
        bias = self._bucket_bias(jnp.zeros((self.heads, self.buckets)), True) if self.positions == "buckets" else None
        return {"layers": stack.init(key, x, Context(Mask(), bias=bias, source=Source(x, Mask())))}

    def _encoder(self, backend: str) -> Stack:
        blocks = tuple(self._block({"attention": self._self_attention(one, backend)}) for one in self.attention)
        return Stack(blocks, self.layers, self.scan, self.remat)

    def _decoder(self, backend: str) -> Stack:
        cross = functools.partial(CrossAttention, **self._attention(backend))
        branches = {"attention": self._self_attention("dense", backend), "cross_attention": cross}
        return Stack((self._block(branches),), self._decoder_depth, self.scan, self.remat)

    def _block(self, attention: Mapping) -> Block:
        """A block of these attention branches and feed-forward."""
        stds = {"std": self._std(self.width, self.ff), "out_std": self._std(self.ff, self.width)}
        options = {"initializer": self._scheme.initializer, "dropout": self.dropout_ff, **stds}
        branches = {**attention, "feed_forward": self._feed_forward(bias=self.ff_bias, **options)}
        return Block(branches, self._norm, self.placement, self.dropout, self._adapter, parent=None)

    def _self_attention(self, pattern: str, backend: str):
        return functools.partial(SelfAttention, pattern=parse_pattern(pattern), **self._attention(backend))

    def _attention(self, backend: str) -> dict:
        """Fields that self-attention and cross-attention share."""
        # T5 does not divide scores by sqrt(H). Its query matrices start smaller by that factor instead, as matrices
        # with H times as many inputs would.
        query_inputs = self.width * (1 if self.scale_scores else self.head_size)
        inner = self.heads * self.head_size
        return self._shared | {
            "heads": self.heads,
            "head_size": self.head_size,
            "scale": None if self.scale_scores else 1.0,
            "bias": self.attention_bias,
            "dropout": self.dropout_attention,
            "query_std": self._std(query_inputs, inner),
            "std": self._std(self.width, inner),
            "out_std": self._std(inner, self.width),
            "initializer": self._scheme.initializer,
            "backend": backend,
        }


def _source_mask(segments, input_segments) -> Mask:
    """Which inputs each token sees."""
    if input_segments is None:
        return Mask()
    if segments is None:
        return Mask(key_valid=input_segments != 0)
    return Mask(query_segments=segments, key_segments=input_segments)
