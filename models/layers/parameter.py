"""What a parameter says of itself besides its numbers: the names of its axes, and its role.

How trees of parameters are read, and the partitions of each, stands here too: models need it, and all above them.
"""

from collections.abc import Callable, Sequence

import jax
from flax import linen as nn
from flax import struct


@struct.dataclass
class Parameter(nn.LogicallyPartitioned):
    """A box that a parameter starts in.

    `inputs`: how many of its leading axes, not counting layers, are those of a matrix's inputs; the others are its
    outputs. A table has one, its rows. 0 of what is added or scales: a bias, a norm's gains. `picked`: whether its rows
    are picked on the way in, and not all of them multiplied; scaling laws leave such tables out (Kaplan et al. 2020,
    section 2.1).
    """

    inputs: int = struct.field(pytree_node=False, default=0)
    picked: bool = struct.field(pytree_node=False, default=False)

    @property
    def stacked(self) -> bool:
        """Whether the first axis are layers, each with a tensor of its own (`models.transformer.layer_stack.Stack`)."""
        return self.names[:1] == ("layers",)


def declared(draw: Callable, names: tuple[str | None, ...], inputs: int) -> Callable[..., Parameter]:
    """The initialiser `draw`, whose results say what they are."""

    def boxed(key: jax.Array, *shape_and_dtype) -> Parameter:
        return Parameter(draw(key, *shape_and_dtype), names, inputs=inputs)

    return boxed


def picked(boxed: Callable[..., Parameter]) -> Callable[..., Parameter]:
    """The initialiser `boxed`, whose results say that their rows are picked."""
    return lambda *args: boxed(*args).replace(picked=True)


def is_box(node) -> bool:
    """Whether a node of a tree is a box, which holds an array and the names of its axes."""
    return isinstance(node, nn.LogicallyPartitioned)


def path_name(path) -> str:
    """A tree path as people write it: layers/attention/query/kernel."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def mesh_axes_of(part: str | Sequence[str] | None) -> tuple[str, ...]:
    """The mesh axes that one dimension is split over, by its part of a `PartitionSpec`."""
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)
