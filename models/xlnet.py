"""XLNet (Yang et al. 2019): permutation language modelling with two streams.

A token sees those before it in its row's random factorization order, on either side of it in the text. The content
stream h is Transformer-XL's and sees its own tokens. The query stream g starts from one learned vector at each
predicted position, reads h alone, and never the token that it predicts. Both have the same weights, so they run as one:
x is [h ; g].
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.masks import Mask
from models.attention.relative import distance_table
from models.layers.embedding import lookup
from models.layers.init import embedding_table, normal
from models.transformer.block import Context, Distances, QueryStream, SegmentIds
from models.transformer.model import Output, RecurrentModel

QUERY_MULTIPLE = 8  # the query stream is padded to a multiple of this, which meshes divide
MEMORY_RANK = -1  # below the rank of every query: all see the memory


class XLNet(RecurrentModel):
    """Fields are the keys of `configs.common.two_stream()`, which documents them.

    `model.apply(variables, tokens, carried=carried)` runs one row of a lane and returns what the next one takes;
    without `carried`, a row stands alone. Parameters do not depend on `memory`, `reuse` or `clamp`.
    """

    inputs: ClassVar[tuple[str, ...]] = ("tokens", "types", "segments", "ranks", "slots", "backward", "reset")
    causal: ClassVar[bool] = False

    reuse: int

    def setup(self):
        init = embedding_table(normal(self.init_std, "vocab", "embed"))
        self.token_table = self.param("tokens", init, (self.vocab_size, self.width), self.param_dtype)
        # w of section 2.3: the query stream's first state, the same at every position.
        self.mask_vector = self.param("mask_vector", normal(self.init_std, "embed"), (self.width,), self.param_dtype)
        self.make_layers()
        if self.has_token_head:
            self.head_bias = self.vocab_bias()

    def __call__(
        self,
        tokens: jax.Array,
        *,
        types: jax.Array | None = None,
        segments: jax.Array | None = None,
        ranks: jax.Array | None = None,
        slots: jax.Array | None = None,
        backward: jax.Array | None = None,
        reset: jax.Array | None = None,
        carried: Mapping[str, Any] | None = None,
        row: jax.Array | None = None,
        train: bool = False,
        layers: bool = False,
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D] of h; with `slots` [B, K], of g at these positions: [B, K, D].

        types [B, T]: segment that attention compares; the memory counts as segment 0.
        segments [B, T]: 0 is padding, which nothing sees.
        ranks [B, T]: place in the factorization order. A token sees lower ranks and itself, a slot lower ranks than its
            token's only, and all see the memory. By default every token sees the whole row.
        backward [B] bool: rows in reverse reading order, whose distances are negated.
        reset [B] bool: these lanes start a new stream and forget their memory.
        carried: what the lanes' previous call or `init_memory`, unboxed, returned.
        layers: whether to return the states of all layers of h; not with `slots`.
        """
        (B, T), carried = tokens.shape, dict(carried or {})
        self.check_length(T)
        # Without a memory M = 0, and all columns are the row's own.
        memory = carried.get("attention")
        if memory is not None:
            carried["attention"] = memory = memory.reset(reset)
        M = 0 if memory is None else memory.hidden.shape[2]
        key, drop = self.dropouts(train)
        row = jnp.arange(B) if row is None else row

        def with_memory(values, memory_value):
            """values [B, T] of the row after a constant for the memory: [B, M + T]."""
            return jnp.concatenate([jnp.full((B, M), memory_value, values.dtype), values], axis=1)

        keys = {}  # fields of the mask that both streams share
        if memory is not None or segments is not None:
            valid = jnp.ones((B, T), bool) if segments is None else segments != 0
            keys["key_valid"] = valid if memory is None else jnp.concatenate([memory.valid(), valid], axis=1)
        if ranks is not None:
            keys["key_ranks"] = with_memory(ranks, MEMORY_RANK)
        segment_ids = None
        if types is not None:
            types = types.astype(jnp.float32)
            segment_ids = SegmentIds(types, with_memory(types, 0.0))
        # A mask admits keys of lower rank. Content sees itself too, so its queries have rank + 1; the query stream
        # keeps its token's rank and so never sees the token that it predicts.
        mask = Mask(memory=M, query_ranks=None if ranks is None else ranks + 1, **keys)

        x, query_stream = drop(lookup(self.token_table, tokens).astype(self.dtype), 0, row), None
        if slots is not None:
            positions = jnp.pad(slots, ((0, 0), (0, -slots.shape[1] % QUERY_MULTIPLE)))

            def at_slots(values):
                return jnp.take_along_axis(values, positions, axis=1)

            query_columns = M + positions
            query_ranks = None if ranks is None else at_slots(ranks)
            query_mask = Mask(query_columns=query_columns, query_ranks=query_ranks, **keys)
            # A slot has its token's segment, which is known, and not its token, which is not.
            ids = segment_ids and SegmentIds(at_slots(types), segment_ids.key)
            query_stream = QueryStream(query_mask, ids)
            # Padding slots repeat position 0; their rows are cut off below.
            g = jnp.broadcast_to(self.mask_vector.astype(self.dtype), (*positions.shape, self.width))
            x = jnp.concatenate([x, drop(g, 3, row)], axis=1)
        rows = distance_table(T, M + T, self.width, self.clamp, both_ways=True)
        if backward is not None:
            # sin(-d) = -sin(d) and cos(-d) = cos(d): the table of negated distances without a second one.
            sines, cosines = jnp.split(rows, 2, axis=-1)
            rows = jnp.stack([rows, jnp.concatenate([-sines, cosines], axis=-1)])
        distances = Distances(drop(rows.astype(self.dtype), 1), None, None, backward)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        context = Context(
            mask, row, distances=distances, segment_ids=segment_ids, query_stream=query_stream, train=train
        )
        x, carried, states = self.stack(self.stacked, x, context, carried, key, layers or self.mixes)
        if slots is not None:
            states = None  # of two streams
            x = x[:, T:]
            if positions.shape != slots.shape:  # XLA cannot slice an odd length from an axis that a mesh splits
                x = nn.with_logical_constraint(x, ("batch", None, None))[:, : slots.shape[1]]
        carried = {name: one.advance(min(self.reuse, T), None) for name, one in carried.items()}
        output = self.output(drop(x, 2, row), carried, states)
        self.init_heads(output.hidden)
        return output

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Inputs of the output head: hidden [..., D], matrix [V, D], bias [V]."""
        return hidden, self.token_table, self.head_bias

    def example(self) -> dict[str, jax.Array]:
        """The smallest inputs: one row of one token, and one slot."""
        false = jnp.zeros((1,), bool)
        return super().example() | {"slots": jnp.zeros((1, 1), jnp.int32), "backward": false, "reset": false}

    def _attention(self, backend: str):
        return super()._attention(backend, segment_attention=True, bias_matrices=True, reuse=self.reuse)

    def _init_context(self) -> Context:
        distances, one = Distances(distance_table(1, 1, self.width), None, None), jnp.zeros((1, 1))
        return super()._init_context().replace(distances=distances, segment_ids=SegmentIds(one, one))
