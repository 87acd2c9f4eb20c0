"""What a parameter says of itself besides its numbers: the names of its axes, and its role."""

from collections.abc import Callable

import jax
from flax import linen as nn
from flax import struct


@struct.dataclass
class Parameter(nn.LogicallyPartitioned):
    """A box that a parameter starts in.

    `inputs`: how many of its leading axes, not counting layers, are those of a matrix's inputs; the others are its
    outputs. A table has one, its rows. 0 of what is added or scales: a bias, a norm's gains.
    """

    inputs: int = struct.field(pytree_node=False, default=0)

    @property
    def stacked(self) -> bool:
        """Whether the first axis are layers, each with a tensor of its own (`models.stack.depth.Stack`)."""
        return self.names[:1] == ("layers",)


def declared(draw: Callable, names: tuple[str | None, ...], inputs: int) -> Callable[..., Parameter]:
    """The initialiser `draw`, whose results say what they are."""

    def boxed(key: jax.Array, *shape_and_dtype) -> Parameter:
        return Parameter(draw(key, *shape_and_dtype), names, inputs=inputs)

    return boxed
