"""What all models have in common, as most of them have it (models/__init__.py lists what every model offers)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.layers.logits import whole_logits
from models.transformer.layer_stack import Stack, stack_param


class Model(nn.Module):
    """One softmax, made of `head_inputs`, gives all probabilities; ids read are those predicted; no lane carries."""

    inputs: ClassVar[tuple[str, ...]]
    causal: ClassVar[bool]
    one_softmax: ClassVar[bool] = True
    tells_replaced: ClassVar[bool] = False

    vocab_size: int

    def make_layers(self) -> None:
        """Of `setup`, where a model is one stack: that, and its parameters, which `_init_stack` makes of a key."""
        # Parameters do not depend on how attention is computed: the oracle makes them, whatever the named path refuses.
        self.stack = self.stack_by("reference" if self.is_initializing() else self.attention_path)
        self.stacked = stack_param(self, "layers", self._init_stack)

    def stack_by(self, path: str) -> Stack:
        """All layers, their attention computed by `path`: blocks whose attention follows the patterns in turn."""
        blocks = tuple(self._block(pattern, path) for pattern in self.attention)
        return Stack(blocks, self.layers, self.scan, self.remat)

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
