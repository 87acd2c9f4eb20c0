"""What kernels want of their arrays: whole blocks of rows. And what they make of queries that see nothing."""

import jax.numpy as jnp

LANES = 128  # of a TPU's vector unit, and rows of a block of a GPU's kernel


def whole_blocks(length: int) -> int:
    """The length of whole blocks that holds so many rows."""
    return length + -length % LANES


def lengthened(arrays, mask):
    """Query [B, T, N, H], key and value [B, S, G, H] of whole blocks, and a mask that hides what was added.

    Under a causal mask it lies in the future.
    """
    B, T, S = *arrays[0].shape[:2], arrays[1].shape[1]
    rows, columns = whole_blocks(T) - T, whole_blocks(S) - S
    if columns and not mask.causal and mask.query_segments is None:
        mask = mask.replace(query_segments=jnp.ones((B, T), jnp.int32), key_segments=jnp.ones((B, S), jnp.int32))

    def pad(x, more):
        return None if x is None else jnp.pad(x, ((0, 0), (0, more)) + ((0, 0),) * (x.ndim - 2))

    mask = mask.replace(query_segments=pad(mask.query_segments, rows), key_segments=pad(mask.key_segments, columns))
    return [pad(x, more) for x, more in zip(arrays, (rows, columns, columns), strict=True)], mask


def without_blind(out, mask, keys: int):
    """`out` [B, T, N, H] with zeros for queries that see none of the keys, which kernels give a mean of the values."""
    if mask.key_segments is None and mask.features() <= {"causal", "segments"}:
        seen = True if mask.query_segments is None else mask.query_segments != 0  # others see themselves
    else:  # a sum over a formula: no array of the pairs is made
        seen = jnp.any(mask.tile(0, out.shape[1], 0, keys), axis=-1)[:, 0]
    return jnp.where(jnp.broadcast_to(seen, out.shape[:2])[:, :, None, None], out, 0)
