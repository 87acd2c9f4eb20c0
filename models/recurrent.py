"""Transformer-XL (Dai et al. 2019): segments in a row, each attending to the hidden states of the ones before.

Attention works on distances, not positions, so a layer can look back at its own inputs of earlier segments: the
memory, the last M of them, through which no gradient flows. Each layer reaches M further back than the one below.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from models.attention.masks import Mask
from models.attention.patterns import Dense, Local
from models.attention.relative import attend_relative, distance_table
from models.parts.adaptive import AdaptiveVocabulary
from models.parts.layers import FeedForward, Linear, Norm, dropout, normal
from models.stack.block import Block
from models.stack.cache import Cache
from models.stack.depth import Stack


@struct.dataclass
class Memory:
    """What a lane of the batch carries from one segment to the next."""

    hidden: jax.Array  # [L, B, M, D]: inputs of every layer at the last M positions
    held: jax.Array  # [1, B] int32: so many of them, at the end, belong to the document in progress


@struct.dataclass
class Recurrence:
    """The memory's hidden states on their way through the layers, which read and replace theirs in turn."""

    hidden: jax.Array  # [L, B, M, D]
    layer: jax.Array  # [] int32, the layer that `extend` reads and writes

    def extend(self, x: jax.Array) -> tuple["Recurrence", jax.Array]:
        """The same with layer input x [B, T, D] put behind the layer's memory; and [memory ; x], of M + T positions."""
        old = jax.lax.stop_gradient(self.hidden[self.layer].astype(x.dtype))
        seen = jnp.concatenate([old, x], axis=1)
        kept = jax.lax.stop_gradient(seen[:, seen.shape[1] - old.shape[1] :])
        return self.replace(hidden=self.hidden.at[self.layer].set(kept.astype(self.hidden.dtype))), seen


@struct.dataclass
class Distances:
    """What relative attention knows of positions: a row for each distance, and the two biases of all layers."""

    rows: jax.Array  # [R, D], the farthest first
    content_bias: jax.Array | None  # u [N, H]; None where each layer has its own
    position_bias: jax.Array | None  # v [N, H]


@struct.dataclass
class Output:
    """Hidden states [B, T, D], and the memory or cache that was given, extended."""

    hidden: jax.Array
    memory: Memory | None = None
    cache: Cache | None = None


class RelativeSelfAttention(nn.Module):
    """Self-attention by content and distance over [memory ; x]; no biases but u and v (section 3.3)."""

    width: int
    heads: int
    head_size: int
    dropout: float
    std: float
    attention_path: str
    dtype: str
    param_dtype: str

    @nn.compact
    def __call__(self, x, *, mask: Mask, positions: Distances, train: bool, cache: Recurrence | Cache | None = None):
        """x [B, T, D] -> [B, T, D], and the memory or cache with this layer's share."""
        kind = {"bias": False, "std": self.std, "dtype": self.dtype, "param_dtype": self.param_dtype}
        split = {"heads": self.heads, "head_size": self.head_size}

        def project(name, x):
            return Linear({"embed": self.width}, split, name=name, **kind)(x)

        seen = x
        if isinstance(cache, Recurrence):
            cache, seen = cache.extend(x)
        query, key, value = project("query", x), project("key", seen), project("value", seen)
        if isinstance(cache, Cache):
            cache = cache.extend(key, value)
            key, value = cache.key[cache.layer], cache.value[cache.layer]
        u, v = positions.content_bias, positions.position_bias
        if u is None:
            u, v = (self._bias(name) for name in ("content_bias", "position_bias"))
        y = attend_relative(
            *(query, key, value, project("distance", positions.rows), u, v, mask),
            dropout_rate=self.dropout if train else 0.0,
            dropout_rng=self.make_rng("dropout") if train and self.dropout else None,
            path=self.attention_path,
        )
        y = nn.with_logical_constraint(y, ("batch", "length", "heads", "head_size"))
        return Linear(split, {"embed": self.width}, name="output", **kind)(y), cache

    def _bias(self, name):
        names, shape = ("heads", "head_size"), (self.heads, self.head_size)
        return self.param(name, normal(self.std, *names), shape, self.param_dtype)


class TransformerXL(nn.Module):
    """The fields are the keys of `configs.common.transformer_xl()`, which explains and defaults them.

    `model.apply(variables, tokens, memory=memory)` runs one segment and returns the memory for the next;
    without `memory`, a row stands alone. The parameters do not depend on `memory`, `clamp` or `same_length`, so a model
    trained with a short memory is evaluated with a long one.
    """

    vocab_size: int
    context: int
    cutoffs: tuple[int, ...]
    embed: int
    divisor: int
    project_always: bool
    tied_words: bool
    shared_projections: str
    layers: int
    width: int
    heads: int
    head_size: int
    ff: int
    memory: int
    clamp: int
    same_length: bool
    shared_biases: bool
    activation: str
    norm_epsilon: float
    attention_path: str
    dropout: float
    dropout_attention: float
    init_std: float
    projection_init_std: float
    norm_init_std: float
    dtype: str
    param_dtype: str
    scan: bool
    remat: str

    def setup(self):
        self.vocabulary = AdaptiveVocabulary(
            vocab_size=self.vocab_size,
            cutoffs=self.cutoffs,
            width=self.width,
            embed=self.embed or self.width,
            divisor=self.divisor,
            project_always=self.project_always,
            tied_words=self.tied_words,
            shared_projections=self.shared_projections,
            std=self.init_std,
            projection_std=self.projection_init_std,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        if self.shared_biases:
            names, shape = ("heads", "head_size"), (self.heads, self._head_size)
            self.content_bias, self.position_bias = (
                self.param(name, normal(self.init_std, *names), shape, self.param_dtype)
                for name in ("content_bias", "position_bias")
            )
        # Parameters do not depend on how attention is computed: the oracle makes them, whatever the named path refuses.
        self.stack = self._stack("reference" if self.is_initializing() else self.attention_path)
        self.stacked = self.param("layers", self._init_stack)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        memory: Memory | None = None,
        reset: jax.Array | None = None,
        cache: Cache | None = None,
        train: bool = False,
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D].

        memory: what the same lanes' segment before returned; reset [B] bool: these lanes start afresh. segments [B, T]
        keep documents of a row apart, 0 is padding; the memory belongs to the document that the row starts with. cache:
        keys and values for decoding token by token. `positions` are taken for the data's sake and not looked at.
        `train` turns dropout on; it draws from the rng named "dropout".
        """
        T, S = tokens.shape[1], tokens.shape[1] + self.memory
        if cache is not None:
            mask, S = Mask(causal=True, offset=cache.lengths), cache.key.shape[2]
        elif memory is None:
            mask, S = Mask(causal=True, query_segments=segments), T
        else:
            memory = _reset(memory, reset)
            mask = self._memory_mask(tokens, segments, memory)
        mask = mask.replace(pattern=Local(self.memory) if self.same_length else Dense())
        random = self.make_rng("dropout") if train and (self.dropout or self.dropout_attention) else None

        def drop(x, name):
            key = None if random is None else jax.random.fold_in(random, self.layers + name)
            return dropout(x, self.dropout, key)

        x = drop(self.vocabulary.embed_tokens(tokens), 0)
        reach = min(S, self.memory) if self.same_length else S
        rows = drop(distance_table(T, reach, self.width, self.clamp).astype(self.dtype), 1)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        biases = (self.content_bias, self.position_bias) if self.shared_biases else (None, None)
        carried = cache
        if memory is not None:
            carried = Recurrence(memory.hidden, jnp.zeros((), jnp.int32))
        x, carried = self.stack(
            *(self.stacked, x),
            rng=random,
            cache=carried,
            mask=mask,
            positions=Distances(rows, *biases),
            train=train,
        )
        x = drop(x, 2)
        if cache is not None:
            added = T if segments is None else (segments != 0).sum(-1, dtype=jnp.int32)
            return Output(x, cache=carried.replace(lengths=cache.lengths + added))
        if memory is not None:
            memory = Memory(carried.hidden, _held(memory.held, segments, T, self.memory))
        return Output(x, memory=memory)

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array] | None:
        """What logits are made of: hidden [..., E] as projected, the matrix [V, E] and the bias [V].

        None with cutoffs: then no single softmax gives the probabilities, and `log_probs` scores.
        """
        return None if self.cutoffs else self.vocabulary.softmax_inputs(hidden, 0)

    def log_probs(self, hidden: jax.Array, targets: jax.Array) -> jax.Array:
        """Log-probability of targets [B, T] given hidden [B, T, D]: float32 [B, T]."""
        return self.vocabulary.log_probs(hidden, targets)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> log-probabilities [..., V] float32."""
        return self.vocabulary.logits(hidden)

    def init_memory(self, batch: int) -> Memory:
        """Empty memory for `batch` lanes: nothing is seen of it until it is filled."""
        hidden = jnp.zeros((self.layers, batch, self.memory, self.width), self.dtype)
        return Memory(hidden, jnp.zeros((1, batch), jnp.int32))

    def init_cache(self, batch: int, length: int) -> Cache:
        """An empty cache for `batch` rows of at most `length` tokens, prompt included."""
        return Cache.empty(self.layers, batch, length, self.heads, (self._head_size,) * 2, self.dtype)

    def _memory_mask(self, tokens, segments, memory):
        M = self.memory
        there = jnp.arange(M)[None, :] >= M - memory.held[0][:, None]
        if segments is None:
            valid = jnp.concatenate([there, jnp.ones(tokens.shape, bool)], axis=1)
            return Mask(causal=True, memory=M, key_valid=valid)
        remembered = jnp.where(there, segments[:, :1], 0)
        keys = jnp.concatenate([remembered, segments], axis=1)
        return Mask(causal=True, memory=M, query_segments=segments, key_segments=keys)

    @property
    def _head_size(self) -> int:
        return self.head_size or self.width // self.heads

    def _init_stack(self, rng):
        x = jnp.zeros((1, 1, self.width), self.dtype)
        biases = (jnp.zeros((self.heads, self._head_size)),) * 2 if self.shared_biases else (None, None)
        positions = Distances(distance_table(1, 1, self.width), *biases)
        return self._stack("reference").init(rng, x, mask=Mask(causal=True), positions=positions, train=False)

    def _stack(self, path: str) -> Stack:
        """All layers, their attention computed by `path`."""
        return Stack((self._block(path),), self.layers, self.scan, self.remat)

    def _block(self, path: str) -> Block:
        shared = {"width": self.width, "std": self.init_std, "dtype": self.dtype, "param_dtype": self.param_dtype}
        attention = RelativeSelfAttention(
            heads=self.heads,
            head_size=self._head_size,
            dropout=self.dropout_attention,
            attention_path=path,
            parent=None,
            **shared,
        )
        feed_forward = FeedForward(
            ff=self.ff,
            activation=self.activation,
            bias=True,
            out_std=self.init_std,
            dropout=self.dropout,
            parent=None,
            **shared,
        )
        gains = 1.0, self.norm_init_std
        norm = functools.partial(Norm, "layer", self.norm_epsilon, *gains, self.dtype, self.param_dtype)
        return Block(attention, feed_forward, norm, "post", self.dropout, parent=None)


def _reset(memory, reset):
    """The memory with nothing held by the lanes that start afresh."""
    return memory if reset is None else memory.replace(held=jnp.where(reset[None], 0, memory.held))


def _held(held, segments, T, M):
    """How many of the last M positions belong to each lane's document in progress: [1, B]."""
    if segments is None:
        return jnp.minimum(held + T, M)
    last = segments[:, -1:]
    run = jnp.cumprod((segments == last)[:, ::-1].astype(jnp.int32), axis=1).sum(1)  # length of the last document here
    whole = run == T
    held = jnp.minimum(jnp.where(whole[None], held, 0) + run[None], M)
    return jnp.where((last[:, 0] == 0)[None], 0, held)
