"""Positions: learned tables, sinusoids added to the embeddings, or rotations of queries and keys."""

import jax
import jax.numpy as jnp

ABSOLUTE = ("learned", "sinusoid", "sinusoid_concatenated", "factorised")  # added to the embeddings of a row
POSITIONS = (*ABSOLUTE, "rotary", "none")
LONGEST_WAVE = 10_000.0  # in units of 2 pi tokens: Vaswani et al. 2017, section 3.5; Su et al. 2021, section 3.2


def angles(positions: jax.Array, size: int) -> jax.Array:
    """positions [...] -> [..., size / 2] float32: position / 10000^(2i / size)."""
    frequency = LONGEST_WAVE ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    return positions[..., None].astype(jnp.float32) * frequency.reshape((1,) * positions.ndim + (-1,))


def sinusoid(positions: jax.Array, width: int, concatenated: bool = False) -> jax.Array:
    """positions [...] -> [..., width] float32; sine and cosine alternate (Vaswani et al. 2017, section 3.5).

    Or all sines come first, `concatenated`, as in the release of that paper and in CTRL.
    """
    angle = angles(positions, width)
    pairs = jnp.sin(angle), jnp.cos(angle)
    if concatenated:
        return jnp.concatenate(pairs, axis=-1)
    return jnp.stack(pairs, axis=-1).reshape(*positions.shape, width)


def rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Turn x [B, T, N, H] by its position, so that products depend on distance alone (Su et al. 2021).

    Feature i is paired with feature i + H/2 (the layout of GPT-NeoX and Llama checkpoints). Computed in float32.
    """
    angle = angles(positions, x.shape[-1])[..., None, :]  # [B, T, 1, H/2]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)
