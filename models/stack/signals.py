"""What flows beside x through a stack: every layer reads the same, each thing under a name of its own."""

import jax
from flax import struct

from models.attention.biases import Bias
from models.attention.masks import Mask


@struct.dataclass
class Distances:
    """What relative attention knows of positions: a row for each distance, and the two biases of all layers."""

    rows: jax.Array  # [R, D], the farthest first
    content_bias: jax.Array | None  # u [N, H]; None where each layer has its own
    position_bias: jax.Array | None  # v [N, H]


@struct.dataclass
class Source:
    """What cross-attention looks at."""

    hidden: jax.Array | None  # [B, S, D]: an encoder's output; None where decoding carries what is made of it
    mask: Mask  # which of it each query sees


@struct.dataclass
class Signals:
    """What the branches of a block may look at besides x [B, T, D]."""

    mask: Mask  # who may look at whom; each layer's attention adds its own pattern
    row: jax.Array | None = None  # [B] int32: each row's place in the whole global batch, which dropout draws by
    positions: jax.Array | None = None  # [B, T] int32: of rotary attention
    distances: Distances | None = None  # of relative attention
    bias: Bias | None = None  # what all layers' self-attention adds to its scores
    source: Source | None = None  # of cross-attention
    layer: jax.Array | None = None  # [] int32: the layer that is looking, set by the stack on the way
    train: bool = struct.field(pytree_node=False, default=False)  # dropout is on
