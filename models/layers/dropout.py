"""Dropout, drawn row by row."""

import jax
import jax.numpy as jnp


def dropout(x: jax.Array, rate: float, key: jax.Array | None, row: jax.Array | None = None) -> jax.Array:
    """Zero a share `rate` of x and scale the rest by 1/(1 - rate); no key or no rate leaves x as it is.

    row [B] int32: the place of each row of x [B, ...] in the whole global batch. What a row draws depends on the key
    and on that place alone, so that parts of a batch, devices and hosts draw alike. None: x is one for all rows.
    """
    if key is None or rate == 0.0:
        return x

    def keep(key, shape):
        return jax.random.bernoulli(key, 1.0 - rate, shape)

    if row is None:
        kept = keep(key, x.shape)
    else:
        kept = jax.vmap(lambda one: keep(jax.random.fold_in(key, one), x.shape[1:]))(row)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))
