"""Kernels of libraries, and the arrays and masks that they need.

    splash    Pallas splash attention on TPUs
    gpu       cuDNN's flash attention and Pallas flash attention through Triton, on NVIDIA GPUs

Each also runs on any platform for tests, slowly and with the same arithmetic: `interpret=True`, or for cuDNN XLA.
"""

import jax.numpy as jnp

LANES = 128  # of a TPU's vector unit, and rows of a block of a GPU's kernel


def round_up(length: int) -> int:
    """The length of the whole blocks that hold so many rows."""
    return length + -length % LANES


def pad_to_blocks(arrays, mask):
    """Query [B, T, N, H], key and value [B, S, G, H] padded to whole blocks, and a mask that hides the padding."""
    B, T, S = *arrays[0].shape[:2], arrays[1].shape[1]
    rows, columns = round_up(T) - T, round_up(S) - S
    # Under a causal mask the padding is in the future of every query; otherwise segment 0 hides it.
    if columns and not mask.causal and mask.query_segments is None:
        mask = mask.replace(query_segments=jnp.ones((B, T), jnp.int32), key_segments=jnp.ones((B, S), jnp.int32))

    def pad(x, more):
        return None if x is None else jnp.pad(x, ((0, 0), (0, more)) + ((0, 0),) * (x.ndim - 2))

    mask = mask.replace(query_segments=pad(mask.query_segments, rows), key_segments=pad(mask.key_segments, columns))
    return [pad(x, more) for x, more in zip(arrays, (rows, columns, columns), strict=True)], mask


def zero_blind_queries(out, mask, keys: int):
    """`out` [B, T, N, H] with zeros for queries that see no key; kernels give them a mean of the values."""
    if mask.key_segments is None and mask.features() <= {"causal", "segments"}:
        sees = True if mask.query_segments is None else mask.query_segments != 0  # every real token sees itself
    else:  # XLA fuses the formula of the mask into this reduction: no [T, S] array is made
        sees = jnp.any(mask.tile(0, out.shape[1], 0, keys), axis=-1)[:, 0]
    return jnp.where(jnp.broadcast_to(sees, out.shape[:2])[:, :, None, None], out, 0)
