"""XLNet (Yang et al. 2019): text in a random order, of which a second stream predicts some places without seeing them.

A token sees those that come before it in the order of its row, on either side of it in the text. The content stream h
is Transformer-XL's, and sees its own tokens; the query stream g starts from one learned vector at the places that are
predicted, looks at h alone, and never at the token of its own place. Both have the same weights, so that they run as
one: x is [h ; g].
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.attention.masks import Mask
from models.attention.relative import distance_table
from models.errors import ModelError
from models.layers.embedding import looked_up
from models.layers.init import constant, normal
from models.layers.parameter import picked
from models.transformer.context import Asking, Distances, Kinds, Signals
from models.transformer.output import Output
from models.transformer.recurrent_base import Remembering

ROUND = 8  # the query stream has a multiple of so many rows, which meshes divide
FREE = -1  # below the rank of every query


class TwoStream(Remembering):
    """The fields are the keys of `configs.common.two_stream()`, which explains and defaults them.

    `model.apply(variables, tokens, carried=carried)` runs one row of a lane and returns what the next is given; without
    it, a row stands alone. The parameters do not depend on `memory`, `reuse` or `clamp`.
    """

    inputs: ClassVar[tuple[str, ...]] = ("tokens", "types", "segments", "ranks", "slots", "backward", "reset")
    causal: ClassVar[bool] = False
    by_segment: ClassVar[bool] = True
    offsets: ClassVar[bool] = True

    context: int
    reuse: int

    def setup(self):
        words = picked(normal(self.init_std, "vocab", "embed"))
        self.token_table = self.param("tokens", words, (self.vocab_size, self.width), self.param_dtype)
        self.mask_vector = self.param("mask_vector", normal(self.init_std, "embed"), (self.width,), self.param_dtype)
        self.make_layers()
        self.head_bias = self.param("head_bias", constant(0.0, "vocab"), (self.vocab_size,), self.param_dtype)

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
    ) -> Output:
        """tokens [B, T] int32 -> hidden [B, T, D] of h, or with `slots` [B, K] of g at these places: [B, K, D].

        types [B, T]: which segment a token is of, as attention compares them; memory counts as segment 0. segments
        [B, T]: 0 is padding, which nothing sees. ranks [B, T]: a token sees those of lower rank and itself, a slot
        those of lower rank than its token alone, and all see the memory; without them every token sees all of its row.
        backward [B] bool: these rows hold text back to front, and their distances are negative. carried: what `start`
        gave, unboxed, or the same lanes' row before, of which the first `reuse` positions are remembered; reset [B]
        bool: these lanes start afresh. `train` turns dropout on; it draws from the rng named "dropout" and by row [B],
        each row's place in the whole global batch, by default its place in `tokens`.
        """
        (B, T), carried = tokens.shape, dict(carried or {})
        if tokens.shape[1] > self.context:
            raise ModelError(f"{T} tokens do not fit context={self.context}; shorten the row or raise model.context")
        memory = carried.get("attention")
        if memory is not None:
            carried["attention"] = memory = memory.reset(reset)
        M = 0 if memory is None else memory.hidden.shape[2]
        key, drop = self.drops(train)
        row = jnp.arange(B) if row is None else row

        def remembered(values, of_memory):
            """[B, T] behind what stands for the memory."""
            return jnp.concatenate([jnp.full((B, M), of_memory, values.dtype), values], axis=1)

        seen = {}  # what all queries' masks have in common
        if memory is not None or segments is not None:
            here = jnp.ones((B, T), bool) if segments is None else segments != 0
            seen["key_valid"] = here if memory is None else jnp.concatenate([memory.there(), here], axis=1)
        if ranks is not None:
            seen["key_ranks"] = remembered(ranks, FREE)
        kinds = None
        if types is not None:
            types = types.astype(jnp.float32)
            kinds = Kinds(types, remembered(types, 0.0))
        mask = Mask(memory=M, query_ranks=None if ranks is None else ranks + 1, **seen)

        x, asking = drop(looked_up(self.token_table, tokens).astype(self.dtype), 0, row), None
        if slots is not None:
            places = jnp.pad(slots, ((0, 0), (0, -slots.shape[1] % ROUND)))

            def at_places(values):
                return jnp.take_along_axis(values, places, axis=1)

            own = Mask(places=M + places, query_ranks=None if ranks is None else at_places(ranks), **seen)
            asking = Asking(own, kinds and Kinds(at_places(types), kinds.key))
            g = jnp.broadcast_to(self.mask_vector.astype(self.dtype), (*places.shape, self.width))
            x = jnp.concatenate([x, drop(g, 3, row)], axis=1)
        rows = distance_table(T, M + T, self.width, self.clamp, both_ways=True)
        if backward is not None:
            sines, cosines = jnp.split(rows, 2, axis=-1)
            rows = jnp.stack([rows, jnp.concatenate([-sines, cosines], axis=-1)])
        distances = Distances(drop(rows.astype(self.dtype), 1), None, None, backward)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        signals = Signals(mask, row, distances=distances, kinds=kinds, asking=asking, train=train)
        x, carried = self.stack(self.stacked, x, signals, carried, key)
        if slots is not None:
            x = x[:, T:]
            if places.shape != slots.shape:  # XLA cannot cut an odd length off one that a mesh divides
                x = nn.with_logical_constraint(x, ("batch", None, None))[:, : slots.shape[1]]
        hidden = drop(x, 2, row)
        return Output(hidden, {name: one.hold(min(self.reuse, T), None) for name, one in carried.items()})

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What logits are made of: hidden [..., D], the matrix [V, D] and the bias [V]."""
        return hidden, self.token_table, self.head_bias

    def example(self) -> dict[str, jax.Array]:
        """The smallest inputs: one row of one token, and one slot."""
        nothing = jnp.zeros((1,), bool)
        return super().example() | {"slots": jnp.zeros((1, 1), jnp.int32), "backward": nothing, "reset": nothing}

    def start_decoding(self, rows: int, length: int):
        """Raises ModelError: what a token's state depends on is drawn anew for every row."""
        raise ModelError(
            "a model of two streams predicts places of a text and does not go on with it; train a decoder or a "
            "recurrent model for that"
        )

    @property
    def remembered(self) -> int:
        return self.reuse

    def _init_stack(self, key):
        x, one = jnp.zeros((1, 1, self.width), self.dtype), jnp.zeros((1, 1))
        signals = Signals(Mask(), distances=Distances(distance_table(1, 1, self.width), None, None))
        return self.stack_by("reference").init(key, x, signals.replace(kinds=Kinds(one, one)))
