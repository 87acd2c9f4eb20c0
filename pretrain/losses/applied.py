"""A model with its parameters, as objectives run it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn

STATES = "states"  # the scope of all that makes hidden states; what is made of them is outside
TEACHER = "teacher"  # the scope of what has no backward pass


@dataclasses.dataclass(frozen=True)
class Applied:
    """What an objective needs of a model: run it on a batch, and call its methods on what comes out.

    `inputs` are the features of a batch that it is given; `frozen` are parameters that are not its own, and that
    nothing changes: a teacher's.
    """

    model: nn.Module
    params: Any
    inputs: tuple[str, ...]
    frozen: Any = None

    def __call__(self, batch: Mapping, carried, key: jax.Array | None, method: str = "__call__"):
        """(hidden states [B, T, D], what the lanes carry on), by a `method` like the call; a `key` turns dropout on."""
        inputs = {name: batch[name] for name in self.inputs} | {"row": batch["row"], "carried": carried}
        rngs = {} if key is None else {"dropout": key}
        with jax.named_scope(STATES):
            output = self.model.apply(
                {"params": self.params}, **inputs, train=key is not None, rngs=rngs, method=method
            )
        return output.hidden, output.carried

    def run(self, method: str, *arguments):
        """What the model's `method` gives for these arguments."""
        return self.model.apply({"params": self.params}, *arguments, method=method)
