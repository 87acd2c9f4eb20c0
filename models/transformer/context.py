"""Everything a layer reads besides x: masks, positions, distances, the encoder's output."""

import jax
from flax import struct

from models.attention.biases import Bias
from models.attention.masks import Mask


@struct.dataclass
class Distances:
    """Positions of relative attention: sinusoids of distances, and the biases u and v that all layers share."""

    rows: jax.Array  # [R, D], the farthest first; or [2, R, D], for text in reading order and backwards
    content_bias: jax.Array | None  # u [N, H]; None if each layer has its own
    position_bias: jax.Array | None  # v [N, H]
    backward: jax.Array | None = None  # [B] bool: which of the two each row of the batch reads


@struct.dataclass
class SegmentIds:
    """Segments of queries and keys, as relative attention compares them (Yang et al. 2019, section 2.5)."""

    # float32, because they are leaves of a bias, and a bias is differentiated by all its leaves.
    query: jax.Array  # [B, T]
    key: jax.Array  # [B, S]


@struct.dataclass
class QueryStream:
    """XLNet's query stream g: the last rows of x, which read the other rows and are read by none."""

    mask: Mask  # of the stream's queries
    segment_ids: SegmentIds | None

    @property
    def length(self) -> int:
        return self.mask.query_columns.shape[1]


@struct.dataclass
class Source:
    """The encoder's output that cross-attention reads."""

    hidden: jax.Array | None  # [B, S, D]; None when decoding, which carries keys and values instead
    mask: Mask  # which of it each query sees


@struct.dataclass
class Context:
    """Inputs of a block's branches besides x [B, T, D]; the same for all layers but `layer`."""

    mask: Mask  # each layer's attention adds its own pattern
    row: jax.Array | None = None  # [B] int32: index of each row in the global batch, which dropout draws by
    positions: jax.Array | None = None  # [B or 1, T] int32 of rotary attention; of memory and x: [.., M + T]
    distances: Distances | None = None  # of relative attention
    segment_ids: SegmentIds | None = None  # of relative attention
    query_stream: QueryStream | None = None  # of relative attention
    bias: Bias | None = None  # added to the scores of every layer's self-attention
    source: Source | None = None  # of cross-attention
    layer: jax.Array | None = None  # [] int32: index of the layer, set by the stack
    train: bool = struct.field(pytree_node=False, default=False)  # dropout is on
