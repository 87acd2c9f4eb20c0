"""From a column for each distance to a column for each key: every row of queries moved to where it belongs."""

import jax
import jax.numpy as jnp


def relative_shift(by_row: jax.Array, keys: int) -> jax.Array:
    """[..., T, R] by row of distance -> [..., T, keys] by key, for queries at the last T of the keys.

    Row i moves left by T - 1 - i: one column of zeros on the left, and the same numbers read in rows that are one
    shorter (Dai et al. 2019, appendix B). Entries that come from beyond the first R columns are those of future keys,
    which mean nothing unless R reaches there; keys that R does not reach get zeros.
    """
    unreached = max(keys - by_row.shape[-1], 0)
    return move(jnp.pad(by_row, [(0, 0)] * (by_row.ndim - 1) + [(1 + unreached, 0)]), keys)


def move(padded: jax.Array, keys: int) -> jax.Array:
    """The shift, of [..., T, 1 + R] with its column of zeros."""
    *batch, T, R = padded.shape
    shifted = padded.reshape(*batch, T * R)[..., T:]  # flat: a reading from another place, not a copy of rows
    return shifted.reshape(*batch, T, R - 1)[..., :keys]


def relative_gather(by_row: jax.Array, positions: jax.Array, keys: int, reach: int) -> jax.Array:
    """The same by look-up, for queries anywhere: positions [B or 1, 1, T] are the key columns at which they stand.

    Row c stands for the distance reach - 1 - c.
    """
    row = reach - 1 - positions[..., None] + jnp.arange(keys)[None, None, None, :]
    row = jnp.clip(row, 0, by_row.shape[-1] - 1)
    return jnp.take_along_axis(by_row, jnp.broadcast_to(row, (*by_row.shape[:-1], keys)), axis=-1)
