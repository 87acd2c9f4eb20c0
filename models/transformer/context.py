"""What flows beside x through a stack: every layer reads the same, each thing under a name of its own."""

import jax
from flax import struct

from models.attention.biases import Bias
from models.attention.masks import Mask


@struct.dataclass
class Distances:
    """What relative attention knows of positions: a row for each distance, and the two biases of all layers."""

    rows: jax.Array  # [R, D], the farthest first; or [2, R, D], of text that is read forwards and backwards
    content_bias: jax.Array | None  # u [N, H]; None where each layer has its own
    position_bias: jax.Array | None  # v [N, H]
    backward: jax.Array | None = None  # bool [B]: which of the two each row reads


@struct.dataclass
class Kinds:
    """Which segment queries and keys are of, as relative attention compares them: float32, so that biases hold them."""

    query: jax.Array  # [B, T]
    key: jax.Array  # [B, S]


@struct.dataclass
class Asking:
    """The last rows of x, a stream that asks about some places and is not looked at itself (Yang et al. 2019)."""

    mask: Mask  # of as many queries as the stream has rows
    kinds: Kinds | None

    @property
    def rows(self) -> int:
        return self.mask.places.shape[1]


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
    positions: jax.Array | None = None  # [B or 1, T] int32: of rotary attention; of memory and x: [.., M + T]
    distances: Distances | None = None  # of relative attention
    kinds: Kinds | None = None  # of relative attention to segments
    asking: Asking | None = None  # of relative attention: the last rows of x ask, and the others alone are seen
    bias: Bias | None = None  # what all layers' self-attention adds to its scores
    source: Source | None = None  # of cross-attention
    layer: jax.Array | None = None  # [] int32: the layer that is looking, set by the stack on the way
    train: bool = struct.field(pytree_node=False, default=False)  # dropout is on
