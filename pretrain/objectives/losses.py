"""Scoring: from the last hidden states to sums of losses. The other half of each objective is in input_pipeline.

Every loss is a pair of sums, numerator and denominator, so that devices, hosts and parts of an
accumulated batch add theirs up and divide once.
"""

from functools import partial

import jax
import jax.numpy as jnp

ROWS_PER_CHUNK = 512  # rows of logits made at a time: 16 MB of float32 at V 8,192, which stays in a CPU's cache


def cross_entropy(hidden, matrix, bias, targets, weights, *, z_loss=0.0, label_smoothing=0.0, chunk=ROWS_PER_CHUNK):
    """Weighted sum of next-token losses, without ever holding all logits.

    hidden [B, T, D] in the compute dtype, matrix [V, D], bias [V] or None, targets [B, T] int,
    weights [B, T] float32. Returns (objective, nll), two float32 scalars: the sum to differentiate
    (with smoothing and z-loss) and the plain negative log-likelihood in nats.

    The gradient is made together with the value, chunk by chunk, while a chunk's logits are still at
    hand: three matrix products in all, nothing kept and nothing computed twice.
    """
    if bias is None:
        bias = jnp.zeros(matrix.shape[0], jnp.float32)
    return _cross_entropy(hidden, matrix, bias, targets, weights, z_loss, label_smoothing, chunk)


def _chunks(array, chunk):
    """[B, T, ...] to [T / c, B, c, ...], with B * c at most `chunk` rows where T allows it.

    Chunks run along T so that the rows of a batch, which devices share, stay where they are.
    """
    batch, length = array.shape[:2]
    size = next(s for s in range(min(length, max(1, chunk // batch)), 0, -1) if length % s == 0)
    return jnp.moveaxis(array.reshape(batch, length // size, size, *array.shape[2:]), 1, 0)


def _chunk_loss(hidden, matrix, bias, targets, weights, z_loss, smoothing):
    """Sums over one chunk, with what the gradient needs: (objective, nll, logits [B, c, V], log Z [B, c])."""
    logits = (
        jnp.einsum("btd,vd->btv", hidden, matrix, preferred_element_type=jnp.float32)
        + bias.astype(jnp.float32)[None, None]
    )
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = jnp.sum(weights * (log_z - target))
    loss = log_z - (1 - smoothing) * target
    if smoothing:
        loss -= smoothing * logits.mean(-1)
    if z_loss:
        loss += z_loss * jnp.square(log_z)
    return jnp.sum(weights * loss), nll, logits, log_z


@partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _cross_entropy(hidden, matrix, bias, targets, weights, z_loss, smoothing, chunk):
    def body(sums, part):
        objective, nll, _, _ = _chunk_loss(part[0], matrix, bias, *part[1:], z_loss, smoothing)
        return (sums[0] + objective, sums[1] + nll), None

    parts = tuple(_chunks(a, chunk) for a in (hidden, targets, weights))
    sums, _ = jax.lax.scan(body, (jnp.float32(0), jnp.float32(0)), parts)
    return sums


def _forward(hidden, matrix, bias, targets, weights, z_loss, smoothing, chunk):
    vocab = matrix.shape[0]

    def body(carry, part):
        objective_sum, nll_sum, d_matrix, d_bias = carry
        hidden, targets, weights = part
        objective, nll, logits, log_z = _chunk_loss(hidden, matrix, bias, targets, weights, z_loss, smoothing)
        probability = jnp.exp(logits - log_z[..., None])
        scale = weights * (1 + 2 * z_loss * log_z) if z_loss else weights
        here = jnp.arange(vocab)[None, None] == targets[..., None]
        d_logits = probability * scale[..., None] - jnp.where(here, ((1 - smoothing) * weights)[..., None], 0.0)
        if smoothing:
            d_logits -= (smoothing / vocab * weights)[..., None]
        d_bias += d_logits.sum((0, 1))
        d_logits = d_logits.astype(hidden.dtype)
        d_hidden = jnp.einsum("btv,vd->btd", d_logits, matrix)
        # [D, V], because XLA's matrix product on CPUs transposes its left operand: better hidden than the logits.
        d_matrix += jnp.einsum("btd,btv->dv", hidden, d_logits, preferred_element_type=jnp.float32)
        return (objective_sum + objective, nll_sum + nll, d_matrix, d_bias), d_hidden

    parts = tuple(_chunks(a, chunk) for a in (hidden, targets, weights))
    zeros = (jnp.float32(0), jnp.float32(0), jnp.zeros(matrix.shape[::-1], jnp.float32), jnp.zeros(vocab, jnp.float32))
    (objective, nll, d_matrix, d_bias), d_hidden = jax.lax.scan(body, zeros, parts)
    d_hidden = jnp.moveaxis(d_hidden, 0, 1).reshape(hidden.shape)
    return (objective, nll), (d_hidden, d_matrix.T.astype(matrix.dtype), d_bias.astype(bias.dtype), targets, weights)


def _backward(z_loss, smoothing, chunk, saved, cotangents):
    """Only the objective carries gradient; the plain nll is for reporting."""
    d_hidden, d_matrix, d_bias, _, weights = saved
    scale = cotangents[0]
    return (scale.astype(d_hidden.dtype) * d_hidden, scale * d_matrix, scale * d_bias, None, jnp.zeros_like(weights))


_cross_entropy.defvjp(_forward, _backward)
