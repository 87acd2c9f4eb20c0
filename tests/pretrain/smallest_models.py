"""The smallest models of the interface, with which objectives are scored: an encoder, and an encoder with a decoder."""

import functools
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from models.parts.initialisers import constant, normal
from models.stack.output import Output

VOCABULARY, WIDTH = 40, 16


class Mixing(nn.Module):
    """Embeddings, of which each token adds the mean of its row."""

    inputs: ClassVar[tuple[str, ...]] = ("tokens", "types", "positions", "segments")
    causal: ClassVar[bool] = False
    pair_head: ClassVar[bool] = True
    types: ClassVar[int] = 2
    vocab_size: int = VOCABULARY
    reads: int = VOCABULARY

    def setup(self):
        named = functools.partial(normal, 0.3)
        self.table = self.param("table", named("vocab", "embed"), (VOCABULARY, WIDTH))
        self.type_table = self.param("type_table", named(None, "embed"), (self.types, WIDTH))
        self.places = self.param("places", named("positions", "embed"), (64, WIDTH))
        self.dense = self.param("dense", named("embed", None), (WIDTH, WIDTH))
        self.bias = self.param("bias", constant(0.0, "vocab"), (VOCABULARY,))
        self.pair = self.param("pair", named("embed", None), (WIDTH, 2))

    def __call__(self, tokens, types, positions, segments, *, carried=None, row=None, train=False):
        here = (segments > 0)[..., None]
        x = here * (self.table[tokens] + self.type_table[types] + self.places[positions])
        mean = x.sum(1, keepdims=True) / jnp.maximum(here.sum(1, keepdims=True), 1)
        return Output(jnp.tanh((x + jnp.broadcast_to(mean, x.shape)) @ self.dense), carried)

    def head_inputs(self, hidden):
        return jnp.tanh(hidden @ self.dense), self.table, self.bias

    def pair_logits(self, hidden):
        return hidden[:, 0] @ self.pair

    def example(self):
        return {name: jnp.ones((1, 1), jnp.int32) for name in self.inputs}

    def start(self, lanes):
        return {}


class Translating(Mixing):
    """A decoder that sees the mean of what an encoder read, and the sum of what it wrote itself."""

    inputs: ClassVar[tuple[str, ...]] = (
        "inputs",
        "input_positions",
        "input_segments",
        "tokens",
        "positions",
        "segments",
    )

    def __call__(
        self,
        inputs,
        input_positions,
        input_segments,
        tokens,
        positions,
        segments,
        *,
        carried=None,
        row=None,
        train=False,
    ):
        here = (input_segments > 0)[..., None]
        read = here * (self.table[inputs] + self.places[input_positions])
        mean = read.sum(1, keepdims=True) / jnp.maximum(here.sum(1, keepdims=True), 1)
        x = self.table[tokens] + self.places[positions] + jnp.broadcast_to(self.type_table[0], (*tokens.shape, WIDTH))
        x = x + jnp.broadcast_to(self.pair[:, 0], x.shape) + jnp.broadcast_to(self.type_table[1], x.shape)
        x = jnp.cumsum(x, axis=1) / (1 + jnp.arange(x.shape[1]))[None, :, None]
        return Output(jnp.tanh((x + jnp.broadcast_to(mean, x.shape)) @ self.dense), carried)
