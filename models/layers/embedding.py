"""Embedding lookup and position encodings: tables, sinusoids, rotations."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from models.layers.backward import parameter_sharding
from models.layers.init import mesh_axes_of

ABSOLUTE = ("learned", "sinusoid", "sinusoid_concatenated", "factorised")  # added to the token embeddings
POSITIONS = (*ABSOLUTE, "rotary", "none")
# Longest wavelength in units of 2 pi tokens: Vaswani et al. 2017, section 3.5; Su et al. 2021, section 3.2.
MAX_WAVELENGTH = 10_000.0


def lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Rows [B, T, D] of a table [V, D] with axes "vocab" and "embed", for ids [B, T]."""
    rows = jnp.take(table, ids, axis=0)
    sharding = parameter_sharding(table, ("vocab", "embed"))
    columns = mesh_axes_of(sharding.spec[1]) if sharding else ()
    if not columns:
        return rows
    # Devices that split both the batch and the columns (fsdp) look up all their rows in the columns they hold, and
    # exchange afterwards. Left alone, XLA also forgets how other axes split the batch and gives every device all of it
    # ("involuntary full rematerialization").
    batch, length = nn.logical_to_mesh_axes(("batch", "length"))
    others = tuple(axis for axis in mesh_axes_of(batch) if axis not in columns)
    split = NamedSharding(sharding.mesh, PartitionSpec(others or None, length, columns))
    return jax.lax.with_sharding_constraint(rows, split)


def angles(
    positions: jax.Array, size: int, theta: float = MAX_WAVELENGTH, scaling: tuple[float, ...] = ()
) -> jax.Array:
    """positions [...] -> [..., size / 2] float32: position / theta^(2i / size), slowed by `scaling`."""
    frequency = _slowed(theta ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size), scaling)
    return positions[..., None].astype(jnp.float32) * frequency.reshape((1,) * positions.ndim + (-1,))


def _slowed(frequency: jax.Array, scaling: tuple[float, ...]) -> jax.Array:
    """Frequencies for texts longer than those of training.

    scaling: () for none, (factor,) divides all (Chen et al. 2023, position interpolation), (factor, low, high, context)
    divides those that turn less than `low` times in `context` tokens, keeps those that turn more than `high` times, and
    blends the two between (Llama 3.1).
    """
    if not scaling:
        return frequency
    factor, *bounds = scaling
    if not bounds:
        return frequency / factor
    low, high, context = bounds
    turns = context * frequency / (2 * jnp.pi)
    kept = jnp.clip((turns - low) / (high - low), 0, 1)
    return frequency * (kept + (1 - kept) / factor)


def sinusoid(positions: jax.Array, width: int, concatenated: bool = False) -> jax.Array:
    """positions [...] -> [..., width] float32: sines and cosines (Vaswani et al. 2017, section 3.5).

    They alternate as in the paper; `concatenated` puts all sines first, as its release (tensor2tensor) and CTRL do.
    """
    angle = angles(positions, width)
    pairs = jnp.sin(angle), jnp.cos(angle)
    if concatenated:
        return jnp.concatenate(pairs, axis=-1)
    # [..., D/2, 2] -> [..., D]: sine and cosine of one frequency side by side.
    return jnp.stack(pairs, axis=-1).reshape(*positions.shape, width)


def rotate(
    x: jax.Array, positions: jax.Array, theta: float = MAX_WAVELENGTH, scaling: tuple[float, ...] = ()
) -> jax.Array:
    """Rotate queries or keys x [B, T, N, H] by their positions [B or 1, T] (Su et al. 2021, section 3.2).

    A product of two rotated vectors depends on their distance alone.
    """
    # Feature i pairs with i + H/2, the layout of GPT-NeoX and Llama checkpoints; the paper pairs 2i with 2i + 1.
    # In float32: at position 8,192 a bfloat16 angle is off by up to 32 radians.
    angle = angles(positions, x.shape[-1], theta, scaling)[..., None, :]  # [B, T, 1, H/2]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)
