"""ELECTRA (Clark et al. 2020): a small generator fills masked places, a discriminator detects what it replaced."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from models.bert import EncoderBase
from models.errors import ModelError
from models.layers.backward import remat_elementwise
from models.transformer.mlp import ACTIVATIONS
from models.transformer.model import Output

HEADS = ("replaced", "tokens", "copied")


class Generator(EncoderBase):
    """An encoder without tables: it receives embeddings and the token table."""

    def setup(self):
        self.make_layers()
        self._make_token_head()

    def __call__(self, embedded: jax.Array, table: jax.Array, **options) -> Output:
        """embedded [B, T, E] -> hidden [B, T, D]; options as for `EncoderBase.encode`."""
        output = self.encode(embedded, **options)
        if self.is_initializing():
            self.token_head_inputs(output.hidden, table)
        return output


class Electra(EncoderBase):
    """Discriminator and generator. Fields are the keys of `configs.common.replaced_tokens()`, which documents them.

    The generator has the discriminator's depth, `generator_size` of its width, heads of the same size, and a
    feed-forward four times its width. It shares the tables and their norm, and nothing else (section 3.2). The
    discriminator's `head` predicts for each token whether it is replaced (section 2), or the text's `tokens`, to which
    `copied` adds a gate: whether the token that is read is the text's own (both section 3.4).
    """

    has_discriminator: ClassVar[bool] = True
    head_params: ClassVar[tuple[str, ...]] = (
        *EncoderBase.head_params,
        *("judge", "verdict", "copier", "generator/transform", "generator/transform_norm", "generator/head_bias"),
    )

    generator_size: float
    head: str

    def setup(self):
        super().setup()
        if not self.has_token_head:
            return
        if self.generator_size:
            self.generator = Generator(**self._generator_fields())
        if self.head == "replaced":
            self.judge, self.verdict = self._head(self.width), self._head(1)
        else:
            self._make_token_head()
        if self.head == "copied":
            self.copier = self._head(1)

    def __call__(self, tokens: jax.Array, **options) -> Output:
        """The discriminator's hidden states, as `EncoderBase`."""
        output = super().__call__(tokens, **options)
        self.init_heads(output.hidden)
        if self.is_initializing() and self.has_token_head:  # Flax creates parameters where they are first called
            if self.generator_size:
                self.generate(tokens, **options)
            (self.replaced_logits if self.head == "replaced" else self.head_inputs)(output.hidden)
            if self.head == "copied":
                self.copy_logits(output.hidden)
        return output

    def generate(self, tokens: jax.Array, *, types=None, positions=None, **options) -> Output:
        """The generator's hidden states [B, T, D of the generator]; inputs as for the call."""
        return self.generator(self.embed_inputs(tokens, types, positions), self.token_table, **options)

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """As `EncoderBase`, of heads that predict tokens; ModelError otherwise."""
        if self.head == "replaced":
            raise ModelError("config.model.head='replaced': has no token logits. Export the generator for them.")
        return super().head_inputs(hidden)

    def generator_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`head_inputs` of the generator, from its hidden states."""
        return self.generator.token_head_inputs(hidden, self.token_table)

    def replaced_logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> logits [...] float32 of whether each token is replaced."""
        # D(x) = sigmoid(w . act(W h)): the loss applies the sigmoid (section 2).
        hidden = remat_elementwise(ACTIVATIONS[self.activation])(self.judge(hidden))
        return self.verdict(hidden)[..., 0].astype(jnp.float32)

    def copy_logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> logits [...] float32 of whether each token is the text's own."""
        return self.copier(hidden)[..., 0].astype(jnp.float32)

    def _generator_fields(self) -> dict:
        """The generator's fields: the discriminator's but for sizes."""
        names = {field.name for field in dataclasses.fields(EncoderBase)} - {"parent", "name"}
        own = {name: value for name, value in vars(self).items() if name in names}
        # The paper's generators are narrower than the discriminator but as deep.
        sizes = generator_sizes(self.width, self.heads, self.generator_size)
        # Shared tables have the discriminator's width, from which the generator projects to its own.
        return own | sizes | {"embed": self.embed or self.width}


def generator_sizes(width: int, heads: int, size: float) -> dict[str, int]:
    """Width, heads and ff of the generator of a discriminator with that width and number of heads."""
    # Heads keep the discriminator's size, so a narrower model has fewer.
    own = max(1, round(size * width))
    return {"width": own, "heads": max(1, own // (width // heads)), "ff": 4 * own}
