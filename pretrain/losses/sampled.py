"""Tokens drawn from a softmax."""

import jax
import jax.numpy as jnp

BLOCK = 256  # ids whose probabilities are added up at a time


def sampled(logits: jax.Array, keys: jax.Array, places: jax.Array) -> jax.Array:
    """A draw from the softmax of each of so many logits [B, K, V]: ids [B, K] int32, without gradient.

    What is drawn depends on the row's key (keys [B]) and on the place (places [B, K] int32): two slots of one place,
    which have the same logits, draw the same. One random number says how much of the probability lies before the id
    that is drawn: first its block is found by the blocks' sums, then the id in it. The released code of Clark et al.
    2020 takes the highest of the logits and noise of Gumbel's distribution, which needs a random number for each.
    """

    def uniform(key, place):
        return jax.random.uniform(jax.random.fold_in(key, place), (), jnp.float32)

    B, K, V = logits.shape
    masses = jnp.exp(logits - logits.max(-1, keepdims=True))
    masses = jnp.pad(masses, ((0, 0), (0, 0), (0, -V % BLOCK))).reshape(B, K, -1, BLOCK)
    sums = masses.sum(-1)
    ends = jnp.cumsum(sums, axis=-1)
    aim = jax.vmap(jax.vmap(uniform, (None, 0)))(keys, places)[..., None] * ends[..., -1:]
    block = jnp.sum(ends <= aim, axis=-1, keepdims=True)
    within = jnp.cumsum(jnp.take_along_axis(masses, block[..., None], axis=2)[:, :, 0], axis=-1)
    begins = jnp.take_along_axis(ends - sums, block, axis=-1)
    # Sums in two orders may differ in their last bit, which must not lead out of the block.
    aim = jnp.clip(aim - begins, 0, jnp.nextafter(within[..., -1:], jnp.float32(0)))
    return jax.lax.stop_gradient((block * BLOCK + jnp.sum(within <= aim, axis=-1, keepdims=True))[..., 0]).astype(
        jnp.int32
    )
