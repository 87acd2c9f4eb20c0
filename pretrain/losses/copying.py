"""A softmax beside a copy of what is read (Clark et al. 2020, section 3.4, All-Tokens MLM)."""

import jax
import jax.numpy as jnp

from models.layers.logits import head_logits
from pretrain.losses.chunked import summed
from pretrain.losses.cross_entropy import chunk_rows


def copied(hidden, matrix, bias, gates, read, targets, weights, *, chunk: int | None = None):
    """(loss, right): weighted sums of the targets' nll, in nats, and of those that nothing is likelier than.

    A token is copied from `read` with the probability sigmoid(gate), and else drawn from the softmax. hidden [B, T, E],
    matrix [V, E], bias [V]; gates [B, T]; read, targets [B, T] int; weights [B, T] float32.
    """
    return summed(
        _of_chunk, chunk or chunk_rows(matrix.shape[0]), (hidden, gates), (matrix, bias), (read, targets, weights)
    )


def _of_chunk(learned, shared, given, known):
    (hidden, gates), (read, targets, weights) = learned, given
    log_probs = jax.nn.log_softmax(head_logits(hidden, *shared))
    copy, draw = jax.nn.log_sigmoid(gates), jax.nn.log_sigmoid(-gates)

    def drawn(ids):
        return draw + jnp.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]

    same = read == targets
    target, of_read = drawn(targets), jnp.logaddexp(copy, drawn(read))
    found = jnp.where(same, of_read, target)
    right = found >= jnp.maximum(draw + log_probs.max(-1), of_read)
    return -jnp.sum(weights * found), jnp.sum(weights * right)
