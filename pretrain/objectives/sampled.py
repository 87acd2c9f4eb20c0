"""Tokens drawn from a softmax."""

import jax
import jax.numpy as jnp


def sampled(logits: jax.Array, keys: jax.Array, places: jax.Array) -> jax.Array:
    """A draw from the softmax of each of so many logits [B, K, V]: ids [B, K] int32, without gradient.

    What is drawn depends on the row's key (keys [B]) and on the place (places [B, K] int32): two slots of one place,
    which have the same logits, draw the same. The highest of the logits and noise of Gumbel's distribution is such a
    draw (so the released code of Clark et al. 2020).
    """

    def noise(key, place):
        return jax.random.gumbel(jax.random.fold_in(key, place), logits.shape[-1:], jnp.float32)

    drawn = jnp.argmax(logits + jax.vmap(jax.vmap(noise, (None, 0)))(keys, places), axis=-1)
    return jax.lax.stop_gradient(drawn.astype(jnp.int32))
