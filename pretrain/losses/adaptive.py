"""Cross-entropy of an adaptive softmax (Grave et al. 2017), chunk by chunk.

A rare word costs its cluster's surprise in the first softmax and its own in the cluster's softmax. The softmaxes are
those of `models.layers.adaptive_softmax`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from models.layers.logits import head_logits
from pretrain.losses.cross_entropy import rows_per_chunk, sum_in_chunks


def adaptive_cross_entropy(
    softmaxes: Sequence[tuple[jax.Array, jax.Array, jax.Array]], targets: jax.Array, weights: jax.Array
) -> jax.Array:
    """Weighted sum of the negative log-likelihoods of targets [B, T], in nats, a float32 scalar.

    softmaxes: hidden [B, T, E], matrix [C, E] and bias [C] of each; weights [B, T].
    """
    hidden = tuple(states for states, _, _ in softmaxes)
    shared = tuple((matrix.astype(states.dtype), bias) for states, matrix, bias in softmaxes)
    # As if all clusters were one vocabulary: their logits are made for every token.
    rows = rows_per_chunk(sum(len(matrix) for matrix, _ in shared))
    return sum_in_chunks(_nll, rows, hidden, shared, (targets, weights))[0]


def _nll(hidden, shared, given, _):
    targets, weights = given
    logits = [head_logits(states, *head) for states, head in zip(hidden, shared, strict=True)]
    # The first softmax has the frequent words, then one entry for each other cluster.
    start = first = logits[0].shape[-1] - (len(logits) - 1)
    place, nll = targets, 0.0
    for cluster, of_cluster in enumerate(logits[1:]):
        here = (targets >= start) & (targets < start + of_cluster.shape[-1])
        # In the first softmax a rare word is its cluster's entry.
        place = jnp.where(here, first + cluster, place)
        nll += jnp.where(here, _surprise(of_cluster, targets - start), 0.0)
        start += of_cluster.shape[-1]
    return (jnp.sum(weights * (nll + _surprise(logits[0], place))),)


def _surprise(logits, place):
    """Negative log-probability of the word at `place`; of an index out of range, log Z."""
    # A mask instead of a gather, whose gradient would be a scatter.
    here = jnp.arange(logits.shape[-1])[None, None] == place[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(here, logits, 0.0), axis=-1)
