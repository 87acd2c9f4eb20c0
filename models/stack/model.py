"""What all models have in common, as most of them have it (models/__init__.py lists what every model offers)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.parts.heads import whole_logits


class Model(nn.Module):
    """One softmax, made of `head_inputs`, gives all probabilities; ids read are those predicted; no lane carries."""

    inputs: ClassVar[tuple[str, ...]]
    causal: ClassVar[bool]
    one_softmax: ClassVar[bool] = True
    tells_replaced: ClassVar[bool] = False

    vocab_size: int

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> logits [..., V] float32."""
        return whole_logits(*self.head_inputs(hidden))

    def example(self) -> dict[str, jax.Array]:
        """The smallest inputs: one row of one token."""
        return dict.fromkeys(self.inputs, jnp.ones((1, 1), jnp.int32))

    def start(self, lanes: int) -> dict:
        """What lanes of the batch carry at the start of their streams: nothing."""
        return {}

    @property
    def reads(self) -> int:
        """How many ids can be read: those that are predicted."""
        return self.vocab_size

    @property
    def tells_pairs(self) -> bool:
        """Whether it has a head that tells pairs of texts apart."""
        return False

    @property
    def limits(self) -> dict[str, int]:
        """Below what the numbers are of those inputs that index a table."""
        return {"tokens": self.reads}
