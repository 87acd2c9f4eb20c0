"""Transformer-XL (Dai et al. 2019): segments in a row, each attending to the hidden states of the ones before.

Attention works on distances, not positions, so a layer can look back at its own inputs of earlier segments: the
memory, the last M of them, through which no gradient flows. Each layer reaches M further back than the one below.

Distances enter the scores as the paper has it, by vectors of their own (section 3.3), or because queries and keys are
turned by their places in [memory ; segment] (rotary, Su et al. 2021): memory holds states, which no place is in, and
keys are made of them and turned anew for every segment.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.masks import Mask
from models.attention.patterns import Dense, Local, Pattern
from models.attention.relative import distance_table
from models.layers.adaptive_softmax import AdaptiveVocabulary
from models.layers.init import normal
from models.transformer.cache import Cache
from models.transformer.context import Distances, Signals
from models.transformer.memory import Memory
from models.transformer.output import Output
from models.transformer.recurrent_base import Remembering
from models.transformer.self_attention import SelfAttention

POSITIONS = ("relative", "rotary")


class Recurrent(Remembering):
    """The fields are the keys of `configs.common.recurrent()`, which explains and defaults them.

    `model.apply(variables, tokens, carried=carried)` runs one segment and returns what the next is given;
    without it, a row stands alone. The parameters do not depend on `memory`, `clamp` or `same_length`, so a model
    trained with a short memory is evaluated with a long one.
    """

    inputs: ClassVar[tuple[str, ...]] = ("tokens", "segments", "reset")
    causal: ClassVar[bool] = True
    by_segment: ClassVar[bool] = False
    offsets: ClassVar[bool] = False

    context: int
    cutoffs: tuple[int, ...]
    embed: int
    divisor: int
    project_always: bool
    tied_words: bool
    shared_projections: str
    positions: str
    same_length: bool
    shared_biases: bool
    projection_init_std: float
    norm_init_std: float

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
        if self.positions == "relative" and self.shared_biases:
            names, shape = ("heads", "head_size"), (self.heads, self._head_size)
            self.content_bias, self.position_bias = (
                self.param(name, normal(self.init_std, *names, inputs=0), shape, self.param_dtype)
                for name in ("content_bias", "position_bias")
            )
        self.make_layers()

    def __call__(
        self,
        tokens: jax.Array,
        *,
        segments: jax.Array | None = None,
        reset: jax.Array | None = None,
        carried: Mapping[str, Any] | None = None,
        row: jax.Array | None = None,
        train: bool = False,
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D].

        carried: what `start` gave, unboxed, or the same lanes' segment before; reset [B] bool: these lanes start
        afresh. Or what `start_decoding` gave, to go on token by token. segments [B, T] keep documents of a row apart, 0
        is padding; the memory belongs to the document that the row starts with. `train` turns dropout on; it draws from
        the rng named "dropout" and by row [B], each row's place in the whole global batch, by default its place in
        `tokens`.
        """
        T, S = tokens.shape[1], tokens.shape[1] + self.memory
        carried = dict(carried or {})
        match carried.get("attention"):
            case Cache() as cache:
                mask, S, places = Mask(causal=True, offset=cache.lengths), cache.room, cache.slots(T)
            case Memory() as memory:
                carried["attention"] = memory = memory.reset(reset)
                mask, places = self._memory_mask(tokens, segments, memory), jnp.arange(S)[None]
            case None:
                mask, S, places = Mask(causal=True, query_segments=segments), T, jnp.arange(T)[None]
        mask = mask.replace(pattern=self._pattern)
        key, drop = self.drops(train)
        row = jnp.arange(len(tokens)) if row is None else row

        x = drop(self.vocabulary.embed_tokens(tokens), 0, row)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        signals = Signals(mask, row, places, train=train)
        if self.positions == "relative":
            reach = min(S, self.memory) if self.same_length else S
            rows = drop(distance_table(T, reach, self.width, self.clamp).astype(self.dtype), 1)
            biases = (self.content_bias, self.position_bias) if self.shared_biases else (None, None)
            signals = signals.replace(distances=Distances(rows, *biases))
        x, carried = self.stack(self.stacked, x, signals, carried, key)
        x = drop(x, 2, row)
        return Output(x, {name: one.hold(T, segments) for name, one in carried.items()})

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array] | None:
        """What logits are made of: hidden [..., E] as projected, the matrix [V, E] and the bias [V].

        None with cutoffs: then no single softmax gives the probabilities, but `softmaxes` together.
        """
        return None if self.cutoffs else self.vocabulary.softmax_inputs(hidden, 0)

    def softmaxes(self, hidden: jax.Array) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
        """What the logits of an adaptive softmax are made of, as `head_inputs` gives it, of each cluster's."""
        return self.vocabulary.softmaxes(hidden)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> log-probabilities [..., V] float32."""
        return self.vocabulary.logits(hidden)

    def example(self) -> dict[str, jax.Array]:
        """The smallest inputs: one row of one token."""
        ones = jnp.ones((1, 1), jnp.int32)
        return {"tokens": ones, "segments": ones, "reset": jnp.zeros((1,), bool)}

    def start_decoding(self, rows: int, length: int) -> dict[str, Cache]:
        """What is carried from token to token: an empty cache for `rows` of up to `length` tokens, prompt included."""
        return {"attention": Cache.empty(self.layers, rows, length, self.heads, (self._head_size,) * 2, self.dtype)}

    @property
    def one_softmax(self) -> bool:
        """Whether all probabilities are of one softmax, so that `head_inputs` gives what it is made of."""
        return not self.cutoffs

    @property
    def gain_std(self) -> float:
        return self.norm_init_std

    def _attention(self, path: str) -> Callable:
        if self.positions == "relative":
            return super()._attention(path)
        return functools.partial(
            SelfAttention,
            heads=self.heads,
            kv_heads=self.heads,
            head_size=self._head_size,
            query_size=self._head_size,
            pattern=self._pattern,
            rotary=True,
            bias=False,
            dropout=self.dropout_attention,
            query_std=self.init_std,
            out_std=self.init_std,
            initialiser=normal,
            fused_glorot=False,
            scale=None,
            attention_path=path,
            **self._shared,
        )

    @property
    def _pattern(self) -> Pattern:
        return Local(self.memory) if self.same_length else Dense()

    def _memory_mask(self, tokens, segments, memory):
        M, there = self.memory, memory.there()
        if segments is None:
            valid = jnp.concatenate([there, jnp.ones(tokens.shape, bool)], axis=1)
            return Mask(causal=True, memory=M, key_valid=valid)
        remembered = jnp.where(there, segments[:, :1], 0)
        keys = jnp.concatenate([remembered, segments], axis=1)
        return Mask(causal=True, memory=M, query_segments=segments, key_segments=keys)

    def _init_stack(self, key):
        x = jnp.zeros((1, 1, self.width), self.dtype)
        biases = (jnp.zeros((self.heads, self._head_size)),) * 2 if self.shared_biases else (None, None)
        distances = Distances(distance_table(1, 1, self.width), *biases)
        signals = Signals(Mask(causal=True), positions=jnp.zeros((1, 1), jnp.int32), distances=distances)
        return self.stack_by("reference").init(key, x, signals)
