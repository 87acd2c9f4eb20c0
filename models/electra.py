"""ELECTRA (Clark et al. 2020): a small encoder writes in masked places, and a large one tells what it changed."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from models.bert import Bidirectional
from models.errors import ModelError
from models.layers.activations import ACTIVATIONS
from models.layers.remat import light
from models.transformer.output import Output

HEADS = ("replaced", "tokens", "copied")


class Generator(Bidirectional):
    """An encoder that has no tables: it is given embeddings, and the token table to write with."""

    def setup(self):
        self.make_layers()
        self._make_token_head()

    def __call__(self, embedded: jax.Array, table: jax.Array, **given) -> Output:
        """embedded [B, T, E] -> hidden [B, T, D]; `given` as `Bidirectional.encoded` has it."""
        output = self.encoded(embedded, **given)
        if self.is_initializing():
            self.token_head(output.hidden, table)
        return output


class ReplacedTokens(Bidirectional):
    """The discriminator, an encoder, and its generator. The fields are the keys of `configs.common.replaced_tokens()`.

    The generator has the discriminator's depth, `generator_size` of its width, heads of the same size, and a
    feed-forward four times its width. It shares the tables and their norm, and nothing else. The discriminator's
    `head` tells of each token whether it is replaced, by a product, an activation and a product (Clark et al. 2020,
    section 2), or predicts the text's `tokens`, with a gate beside it that says whether what is read is `copied` (both
    of section 3.4).
    """

    tells_replaced: ClassVar[bool] = True

    generator_size: float
    head: str

    def setup(self):
        super().setup()
        if self.generator_size:
            self.generator = Generator(**self._generator_fields())
        if self.head == "replaced":
            self.judge, self.verdict = self._head(self.width), self._head(1)
        else:
            self._make_token_head()
        if self.head == "copied":
            self.copier = self._head(1)

    def __call__(self, tokens: jax.Array, **given) -> Output:
        """The discriminator's hidden states, as `Bidirectional` has them."""
        output = super().__call__(tokens, **given)
        if self.is_initializing():
            if self.generator_size:
                self.generate(tokens, **given)
            if self.head == "replaced":
                self.replaced_logits(output.hidden)
            else:
                self.head_inputs(output.hidden)
            if self.head == "copied":
                self.copy_logits(output.hidden)
        return output

    def generate(
        self,
        tokens: jax.Array,
        *,
        types: jax.Array | None = None,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        carried: Mapping[str, Any] | None = None,
        row: jax.Array | None = None,
        train: bool = False,
    ) -> Output:
        """The generator's hidden states [B, T, D of the generator], of the same inputs as the call."""
        embedded = self.embedded(tokens, types, positions)
        given = {"segments": segments, "carried": carried, "row": row, "train": train}
        return self.generator(embedded, self.token_table, **given)

    def head_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """As of an encoder, where the head predicts tokens; errors: ModelError where it tells replaced ones."""
        if self.head == "replaced":
            raise ModelError(
                "a model with model.head = 'replaced' tells replaced tokens and has no logits of a vocabulary; ask it "
                "for model.apply(variables, output.hidden, method='replaced_logits'), or export its generator by "
                "--part=generator"
            )
        return super().head_inputs(hidden)

    def generator_inputs(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What the generator's logits are made of, as `head_inputs` of an encoder, from its hidden states."""
        return self.generator.token_head(hidden, self.token_table)

    def replaced_logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> logits [...] float32 of whether each token is replaced."""
        return self.verdict(light(ACTIVATIONS[self.activation])(self.judge(hidden)))[..., 0].astype(jnp.float32)

    def copy_logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> logits [...] float32 of whether each token is the text's own."""
        return self.copier(hidden)[..., 0].astype(jnp.float32)

    def _generator_fields(self) -> dict:
        """The fields of the generator."""
        names = {field.name for field in dataclasses.fields(Bidirectional)} - {"parent", "name"}
        own = {name: value for name, value in vars(self).items() if name in names}
        sizes = generator_sizes(self.width, self.heads, self.generator_size)
        return own | sizes | {"embed": self.embed or self.width}


def generator_sizes(width: int, heads: int, size: float) -> dict[str, int]:
    """Width, heads and ff of the generator of a discriminator that has that width and so many heads."""
    own = max(1, round(size * width))
    return {"width": own, "heads": max(1, own // (width // heads)), "ff": 4 * own}
