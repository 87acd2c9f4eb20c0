"""A model with its parameters, as objectives run it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn


@dataclasses.dataclass(frozen=True)
class Applied:
    """What an objective needs of a model: run it on a batch, and call its methods on what comes out.

    `inputs` are the features of a batch that it is given.
    """

    model: nn.Module
    params: Any
    inputs: tuple[str, ...]

    def __call__(self, batch: Mapping, carried, key: jax.Array | None):
        """(hidden states [B, T, D], what the lanes carry on). With a `key`, dropout is on."""
        inputs = {name: batch[name] for name in self.inputs} | {"row": batch["row"], "carried": carried}
        rngs = {} if key is None else {"dropout": key}
        output = self.model.apply({"params": self.params}, **inputs, train=key is not None, rngs=rngs)
        return output.hidden, output.carried

    def run(self, method: str, *arguments):
        """What the model's `method` gives for these arguments."""
        return self.model.apply({"params": self.params}, *arguments, method=method)
