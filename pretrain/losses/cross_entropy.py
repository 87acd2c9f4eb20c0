"""Scoring: from the last hidden states to sums of losses. The other half of each objective is in input_pipeline.

Every loss is a pair of sums, numerator and denominator, so that devices, hosts and parts of an
accumulated batch add theirs up and divide once.
"""

from functools import partial

import jax
import jax.numpy as jnp

from models.layers.chunks import in_chunks, whole
from models.layers.logits import over_rows
from pretrain.losses.sampled import sampled
from pretrain.parallel import sharded_sum

LOGITS_PER_CHUNK = 2**22  # made at a time: 16 MB of float32, which stays in a CPU's cache
ROWS_PER_CHUNK = 512  # at least, of a vocabulary beyond 8,192, whose products would be too small otherwise


def cross_entropy(
    hidden, matrix, bias, targets, weights, *, z_loss=0.0, label_smoothing=0.0, hits=False, draws=None, chunk=None
):
    """Weighted sum of next-token losses, without ever holding all logits.

    hidden [B, T, D] in the compute dtype, matrix [V, D], bias [V] or None, targets [B, T] int,
    weights [B, T] float32. Returns (objective, nll), two float32 scalars: the sum to differentiate
    (with smoothing and z-loss) and the plain negative log-likelihood in nats. With `hits` a third: the weights of the
    targets that no other id is likelier than, which costs nothing, since the highest logit is sought anyway. With
    `draws`, the keys and places that `sampled` takes, last of all what is drawn of the same logits, [B, T] int32.

    The gradient is made together with the value, chunk by chunk, while a chunk's logits are still at
    hand: three matrix products in all, nothing kept and nothing computed twice.
    """
    if bias is None:
        bias = jnp.zeros(matrix.shape[0], jnp.float32)
    chunk = chunk or chunk_rows(matrix.shape[0])
    sums, drawn = _cross_entropy(hidden, matrix, bias, targets, weights, draws, z_loss, label_smoothing, hits, chunk)
    return sums if draws is None else (*sums, drawn)


def chunk_rows(vocab: int) -> int:
    """How many rows of logits over `vocab` ids are made at a time."""
    return max(ROWS_PER_CHUNK, LOGITS_PER_CHUNK // vocab)


def _chunk_loss(hidden, matrix, bias, targets, weights, z_loss, smoothing, hits):
    """Over one chunk: ((objective, nll) and perhaps hits, logits [B, c, V], log Z [B, c], probabilities as logits)."""
    logits = (
        jnp.einsum("btd,vd->btv", hidden, matrix, preferred_element_type=jnp.float32)
        + bias.astype(jnp.float32)[None, None]
    )
    log_z, shares, total = softmax(logits)
    target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = jnp.sum(weights * (log_z - target))
    loss = log_z - (1 - smoothing) * target
    if smoothing:
        loss -= smoothing * logits.mean(-1)
    if z_loss:
        loss += z_loss * jnp.square(log_z)
    sums = jnp.sum(weights * loss), nll
    if hits:
        sums += (jnp.sum(weights * (target >= logits.max(-1))),)
    return sums, logits, log_z, shares / total[..., None]


def softmax(logits):
    """log Z [...], and shares [..., V] and their totals [...], of which the quotients are probabilities."""
    return jax.lax.platform_dependent(logits, cpu=_softmax_once, default=_softmax)


def _softmax(logits):
    log_z = jax.nn.logsumexp(logits, axis=-1)
    return log_z, jnp.exp(logits - log_z[..., None]), jnp.ones_like(log_z)


def _softmax_once(logits):
    """The same with one exponential of each logit, which XLA's CPU programs would else make twice, once slowly."""
    highest = logits.max(-1)
    shares = jax.lax.optimization_barrier(jnp.exp(logits - highest[..., None]))  # of the likeliest id's
    total = shares.sum(-1)
    return highest + jnp.log(total), shares, total


def _added(sums, more):
    return tuple(a + b for a, b in zip(sums, more, strict=True))


def _drawn(logits, keys, places):
    return None if keys is None else sampled(logits, keys, places)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8, 9))
def _cross_entropy(hidden, matrix, bias, targets, weights, draws, z_loss, smoothing, hits, chunk):
    def run(tokens, keys, shared):
        def body(sums, part):
            hidden, targets, weights, places = part
            more, logits, *_ = _chunk_loss(hidden, *shared, targets, weights, z_loss, smoothing, hits)
            return _added(sums, more), _drawn(logits, keys, places)

        sums, drawn = jax.lax.scan(body, (jnp.float32(0),) * (2 + hits), in_chunks(tokens, chunk))
        return sums, whole(drawn, tokens[1].shape[1])

    keys, places = draws or (None, None)
    return sharded_sum.summed(run, (hidden, targets, weights, places), keys, (matrix, bias))


def _forward(hidden, matrix, bias, targets, weights, draws, z_loss, smoothing, hits, chunk):
    vocab = matrix.shape[0]

    def run(tokens, keys, shared):
        matrix, bias = shared

        def body(carry, part):
            sums, d_matrix, d_bias = carry
            hidden, targets, weights, places = part
            more, logits, log_z, probability = _chunk_loss(
                hidden, matrix, bias, targets, weights, z_loss, smoothing, hits
            )
            scale = weights * (1 + 2 * z_loss * log_z) if z_loss else weights
            here = jnp.arange(vocab)[None, None] == targets[..., None]
            d_logits = probability * scale[..., None] - jnp.where(here, ((1 - smoothing) * weights)[..., None], 0.0)
            if smoothing:
                d_logits -= (smoothing / vocab * weights)[..., None]
            d_bias += over_rows(d_logits)
            d_logits = d_logits.astype(hidden.dtype)
            d_hidden = jnp.einsum("btv,vd->btd", d_logits, matrix)
            # [D, V], because XLA's matrix product on CPUs transposes its left operand: better hidden than the logits.
            d_matrix += jnp.einsum("btd,btv->dv", hidden, d_logits, preferred_element_type=jnp.float32)
            return (_added(sums, more), d_matrix, d_bias), (d_hidden, _drawn(logits, keys, places))

        zeros = jnp.zeros(matrix.shape[::-1], jnp.float32), jnp.zeros(vocab, jnp.float32)
        sums, kept = jax.lax.scan(body, ((jnp.float32(0),) * (2 + hits), *zeros), in_chunks(tokens, chunk))
        return sums, whole(kept, tokens[1].shape[1])

    keys, places = draws or (None, None)
    sums, (d_hidden, drawn) = sharded_sum.summed(run, (hidden, targets, weights, places), keys, (matrix, bias))
    sums, d_matrix, d_bias = sums
    saved = d_hidden, d_matrix.T.astype(matrix.dtype), d_bias.astype(bias.dtype), targets, weights
    return (sums, drawn), saved


def _backward(z_loss, smoothing, hits, chunk, saved, cotangents):
    """Only the objective carries gradient; the others are for reporting."""
    d_hidden, d_matrix, d_bias, _, weights = saved
    scale = cotangents[0][0]
    given = scale.astype(d_hidden.dtype) * d_hidden, *((scale * d).astype(d.dtype) for d in (d_matrix, d_bias))
    return *given, None, jnp.zeros_like(weights), None


_cross_entropy.defvjp(_forward, _backward)
