"""The loss of an adaptive softmax: of a rare word, that of its cluster in the first softmax and its own in another.

What the softmaxes are made of is `models.layers.adaptive_softmax`'s; here their logits are made chunk by chunk.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from models.layers.logits import head_logits
from pretrain.losses import chunked
from pretrain.losses.cross_entropy import chunk_rows


def cross_entropy(
    softmaxes: Sequence[tuple[jax.Array, jax.Array, jax.Array]], targets: jax.Array, weights: jax.Array
) -> jax.Array:
    """Weighted sum of the negative log-likelihoods of targets [B, T], in nats, a float32 scalar.

    softmaxes: what a model's `softmaxes` gives, hidden [B, T, E], matrix [C, E] and bias [C] of each; weights [B, T].
    """
    hidden = tuple(states for states, _, _ in softmaxes)
    shared = tuple((matrix.astype(states.dtype), bias) for states, matrix, bias in softmaxes)
    rows = chunk_rows(sum(len(matrix) for matrix, _ in shared))
    return chunked.summed(_nll, rows, hidden, shared, (targets, weights))[0]


def _nll(hidden, shared, given, _):
    targets, weights = given
    logits = [head_logits(one, *of_one) for one, of_one in zip(hidden, shared, strict=True)]
    start = first = logits[0].shape[-1] - (len(logits) - 1)  # what follows the first cluster's words are the others
    place, nll = targets, 0.0
    for cluster, found in enumerate(logits[1:]):
        here = (targets >= start) & (targets < start + found.shape[-1])
        place = jnp.where(here, first + cluster, place)
        nll += jnp.where(here, _surprise(found, targets - start), 0.0)
        start += found.shape[-1]
    return (jnp.sum(weights * (nll + _surprise(logits[0], place))),)


def _surprise(logits, place):
    """Negative log-probability of the word at `place`, where there is one."""
    here = jnp.arange(logits.shape[-1])[None, None] == place[..., None]  # no gather, whose gradient would be a scatter
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(here, logits, 0.0), axis=-1)
