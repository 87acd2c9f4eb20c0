"""Transformer-XL (Dai et al. 2019): segments that attend to the hidden states of earlier ones.

A layer looks back at its own inputs at the last M positions, its memory, through which no gradient flows. So each layer
reaches M further back than the one below. That needs relative positions: learned products with vectors of distances as
in the paper (section 3.3), or rotary ones (Su et al. 2021), where keys made from memory are rotated again by their
place in [memory ; segment] for every segment.
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
from models.transformer.block import Context, Distances
from models.transformer.cache import Cache, Memory
from models.transformer.model import Output, RecurrentModel
from models.transformer.multihead import SelfAttention

POSITIONS = ("relative", "rotary")


class TransformerXL(RecurrentModel):
    """Fields are the keys of `configs.common.recurrent()`, which documents them.

    `model.apply(variables, tokens, carried=carried)` runs one segment and returns what the next one takes; without
    `carried`, a row stands alone. Parameters do not depend on `memory`, `clamp` or `same_length`, so a model trained
    with a short memory can be evaluated with a long one.
    """

    inputs: ClassVar[tuple[str, ...]] = ("tokens", "segments", "reset")
    causal: ClassVar[bool] = True
    head_params: ClassVar[tuple[str, ...]] = (
        *("task_head", "vocabulary/out_*", "vocabulary/word_bias", "vocabulary/cluster*"),
    )

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
        layers: bool = False,
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D].

        segments [B, T]: documents of a row; a token sees its own alone, and 0 is padding. The memory belongs to the
            row's first document.
        reset [B] bool: these lanes start a new stream and forget their memory.
        carried: what the lanes' previous call or `init_memory`, unboxed, returned; or `init_cache`, to decode.
        layers: whether to return the states of all layers.
        """
        T, S = tokens.shape[1], tokens.shape[1] + self.memory
        carried = dict(carried or {})
        # Positions are columns of [memory ; segment]. Only distances between them matter, to rotations too.
        match carried.get("attention"):
            case Cache() as cache:
                mask, S, positions = Mask(causal=True, offset=cache.lengths), cache.capacity, cache.slots(T)
            case Memory() as memory:
                carried["attention"] = memory = memory.reset(reset)
                mask, positions = self._memory_mask(tokens, segments, memory), jnp.arange(S)[None]
            case None:
                mask, S, positions = Mask(causal=True, query_segments=segments), T, jnp.arange(T)[None]
        mask = mask.replace(pattern=self._pattern)
        key, drop = self.dropouts(train)
        row = jnp.arange(len(tokens)) if row is None else row

        # Dropout outside the layers has three sites: words, distances and the last states, as in the release.
        x = drop(self.vocabulary.embed_tokens(tokens), 0, row)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        context = Context(mask, row, positions, train=train)
        if self.positions == "relative":
            # With same_length no query sees beyond M keys, so distances of M and more need no vectors.
            reach = min(S, self.memory) if self.same_length else S
            rows = drop(distance_table(T, reach, self.width, self.clamp).astype(self.dtype), 1)
            biases = (self.content_bias, self.position_bias) if self.shared_biases else (None, None)
            context = context.replace(distances=Distances(rows, *biases))
        x, carried, states = self.stack(self.stacked, x, context, carried, key, layers or self.mixes)
        carried = {name: one.advance(T, segments) for name, one in carried.items()}
        output = self.output(drop(x, 2, row), carried, states)
        self.init_heads(output.hidden)
        return output

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array] | None:
        """Inputs of the output head: hidden [..., E] after projection, matrix [V, E], bias [V].

        None with cutoffs, where `cluster_inputs` replaces it.
        """
        return None if self.cutoffs else self.vocabulary.softmax_inputs(hidden, 0)

    def cluster_inputs(self, hidden: jax.Array) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
        """`head_inputs` of each softmax of the adaptive vocabulary."""
        return self.vocabulary.cluster_inputs(hidden)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> log-probabilities [..., V] float32."""
        return self.vocabulary.logits(hidden)

    def example(self) -> dict[str, jax.Array]:
        """The smallest inputs: one row of one token."""
        ones = jnp.ones((1, 1), jnp.int32)
        return {"tokens": ones, "segments": ones, "reset": jnp.zeros((1,), bool)}

    def init_cache(self, rows: int, length: int) -> dict[str, Cache]:
        """An empty cache for `rows` texts of up to `length` tokens, prompt included."""
        return {"attention": Cache.empty(self.layers, rows, length, self.heads, (self._head_size,) * 2, self.dtype)}

    @property
    def single_softmax(self) -> bool:
        """Whether one softmax gives all probabilities."""
        return not self.cutoffs

    def _norm(self) -> Callable:
        return super()._norm(init_std=self.norm_init_std)

    def _attention(self, backend: str) -> Callable:
        if self.positions == "relative":
            return super()._attention(backend)
        return functools.partial(
            SelfAttention,
            heads=self.heads,
            head_size=self._head_size,
            pattern=self._pattern,
            rotary=True,
            bias=False,
            dropout=self.dropout_attention,
            std=self.init_std,
            query_std=self.init_std,
            out_std=self.init_std,
            initializer=normal,
            backend=backend,
            **self._shared,
        )

    @property
    def _pattern(self) -> Pattern:
        return Local(self.memory) if self.same_length else Dense()

    def _memory_mask(self, tokens, segments, memory):
        M, valid = self.memory, memory.valid()
        if segments is None:
            valid = jnp.concatenate([valid, jnp.ones(tokens.shape, bool)], axis=1)
            return Mask(causal=True, memory=M, key_valid=valid)
        # Memory takes the segment of the row's first token: the document that continues from the row before.
        remembered = jnp.where(valid, segments[:, :1], 0)
        keys = jnp.concatenate([remembered, segments], axis=1)
        return Mask(causal=True, memory=M, query_segments=segments, key_segments=keys)

    def _init_context(self) -> Context:
        biases = (jnp.zeros((self.heads, self._head_size)),) * 2 if self.shared_biases else (None, None)
        return super()._init_context().replace(distances=Distances(distance_table(1, 1, self.width), *biases))
