"""Cross-entropy in chunks of logits, with the gradient computed in the forward pass.

A loss is a sum over tokens; its denominator is a separate sum, so that devices, hosts and parts of an accumulated batch
add theirs up and divide once. `cross_entropy` has a gradient written out by hand. `sum_in_chunks` takes any function of
a chunk's logits and differentiates it with JAX.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from models.layers.logits import head_logits, join_chunks, split_chunks, sum_rows
from pretrain.parallel import sharded_sum

LOGITS_PER_CHUNK = 2**22  # 16 MB of float32, which stays in a CPU's cache
ROWS_PER_CHUNK = 512  # minimum: with fewer, matrix products of vocabularies above 8,192 would be too small
SAMPLE_BLOCK = 256  # ids whose probabilities are summed at a time while sampling


def cross_entropy(
    hidden, matrix, bias, targets, weights, *, z_loss=0.0, label_smoothing=0.0, accuracy=False, draws=None, chunk=None
):
    """Weighted sums of token losses: (objective, nll), float32 scalars, of which `objective` is differentiated.

    hidden [B, T, D] in the compute dtype, matrix [V, D], bias [V] or None (a model's `head_inputs`), targets [B, T]
    int, weights [B, T] float32.
    `objective` includes label smoothing and z-loss; `nll` is the negative log-likelihood in nats. `accuracy` adds a
    third sum: the weights of targets that no other id exceeds. `draws`, the keys and places of `sample_ids`, adds ids
    drawn from the same logits, [B, T] int32.
    """
    if bias is None:
        # Zeros instead of None: one program with one gradient for both cases.
        bias = jnp.zeros(matrix.shape[0], jnp.float32)
    matrix, chunk = matrix.astype(hidden.dtype), chunk or rows_per_chunk(matrix.shape[0])
    sums, ids = _cross_entropy(hidden, matrix, bias, targets, weights, draws, z_loss, label_smoothing, accuracy, chunk)
    return sums if draws is None else (*sums, ids)


def rows_per_chunk(vocab: int) -> int:
    """Rows of logits over `vocab` ids in one chunk."""
    return max(ROWS_PER_CHUNK, LOGITS_PER_CHUNK // vocab)


def _chunk_loss(hidden, matrix, bias, targets, weights, z_loss, smoothing, accuracy):
    """One chunk: (sums, logits [B, c, V], log Z [B, c], probabilities [B, c, V])."""
    # Factors in the compute dtype, sums in float32: a softmax in bfloat16 would lose rare words.
    logits = (
        jnp.einsum("btd,vd->btv", hidden, matrix, preferred_element_type=jnp.float32)
        + bias.astype(jnp.float32)[None, None]
    )
    log_z, shares, total = softmax(logits)
    target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    # Without smoothing and z-loss: perplexity and bits are computed from it.
    nll = jnp.sum(weights * (log_z - target))
    # log p = logit - log Z, so no probabilities are needed; smoothing mixes in the mean of log p over V.
    loss = log_z - (1 - smoothing) * target
    if smoothing:
        loss -= smoothing * logits.mean(-1)
    if z_loss:
        loss += z_loss * jnp.square(log_z)
    sums = jnp.sum(weights * loss), nll
    if accuracy:  # at no cost: the softmax needs the highest logit anyway
        sums += (jnp.sum(weights * (target >= logits.max(-1))),)
    return sums, logits, log_z, shares / total[..., None]


def softmax(logits):
    """(log Z [...], shares [..., V], totals [...]): probabilities are shares / totals."""
    return jax.lax.platform_dependent(logits, cpu=_softmax_on_cpu, default=_softmax)


def _softmax(logits):
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # Already divided by Z, so the totals are 1.
    return log_z, jnp.exp(logits - log_z[..., None]), jnp.ones_like(log_z)


def _softmax_on_cpu(logits):
    """The same with one exponential of each logit: XLA's CPU programs would make two, one of them slowly."""
    highest = logits.max(-1)
    # The barrier keeps XLA from fusing the exponential into both of its users, which would compute it twice.
    shares = jax.lax.optimization_barrier(jnp.exp(logits - highest[..., None]))
    total = shares.sum(-1)
    return highest + jnp.log(total), shares, total


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8, 9))
def _cross_entropy(hidden, matrix, bias, targets, weights, draws, z_loss, smoothing, accuracy, chunk):
    def run(tokens, keys, shared):
        def body(sums, part):
            hidden, targets, weights, places = part
            more, logits, *_ = _chunk_loss(hidden, *shared, targets, weights, z_loss, smoothing, accuracy)
            return _add(sums, more), None if keys is None else sample_ids(logits, keys, places)

        # A loop: logits of one chunk are in memory, not those of all tokens.
        sums, ids = jax.lax.scan(body, (jnp.float32(0),) * (2 + accuracy), split_chunks(tokens, chunk))
        return sums, join_chunks(ids, tokens[1].shape[1])

    keys, places = draws or (None, None)
    return sharded_sum.summed(run, (hidden, targets, weights, places), keys, (matrix, bias))


def _cross_entropy_forward(hidden, matrix, bias, targets, weights, draws, z_loss, smoothing, accuracy, chunk):
    """Three matrix products in all: a chunk's logits are still at hand when its gradient is made, and then dropped."""
    vocab = matrix.shape[0]

    def run(tokens, keys, shared):
        matrix, bias = shared

        def body(carry, part):
            sums, d_matrix, d_bias = carry
            hidden, targets, weights, places = part
            more, logits, log_z, probability = _chunk_loss(
                hidden, matrix, bias, targets, weights, z_loss, smoothing, accuracy
            )
            # d loss / d logits = p (1 + 2 z log Z) - (1 - s) one_hot - s / V, with z-loss z and smoothing s.
            scale = weights * (1 + 2 * z_loss * log_z) if z_loss else weights
            here = jnp.arange(vocab)[None, None] == targets[..., None]
            d_logits = probability * scale[..., None] - jnp.where(here, ((1 - smoothing) * weights)[..., None], 0.0)
            if smoothing:
                d_logits -= (smoothing / vocab * weights)[..., None]
            d_bias += sum_rows(d_logits)
            d_logits = d_logits.astype(hidden.dtype)
            d_hidden = jnp.einsum("btv,vd->btd", d_logits, matrix)
            # [D, V], because XLA's matrix product on CPUs transposes its left operand: better hidden than the logits.
            d_matrix += jnp.einsum("btd,btv->dv", hidden, d_logits, preferred_element_type=jnp.float32)
            ids = None if keys is None else sample_ids(logits, keys, places)
            return (_add(sums, more), d_matrix, d_bias), (d_hidden, ids)

        zeros = jnp.zeros(matrix.shape[::-1], jnp.float32), jnp.zeros(vocab, jnp.float32)
        sums, by_token = jax.lax.scan(body, ((jnp.float32(0),) * (2 + accuracy), *zeros), split_chunks(tokens, chunk))
        return sums, join_chunks(by_token, tokens[1].shape[1])

    keys, places = draws or (None, None)
    sums, (d_hidden, ids) = sharded_sum.summed(run, (hidden, targets, weights, places), keys, (matrix, bias))
    sums, d_matrix, d_bias = sums
    # Kept for the backward pass: gradients of [B, T, D] and [V, D], instead of logits of [B, T, V].
    residuals = d_hidden, d_matrix.T.astype(matrix.dtype), d_bias.astype(bias.dtype), targets, weights
    return (sums, ids), residuals


def _cross_entropy_backward(z_loss, smoothing, accuracy, chunk, residuals, cotangents):
    """Only the objective carries gradient; the other sums are for reporting."""
    d_hidden, d_matrix, d_bias, _, weights = residuals
    scale = cotangents[0][0]
    gradients = scale.astype(d_hidden.dtype) * d_hidden, *((scale * d).astype(d.dtype) for d in (d_matrix, d_bias))
    # Integer targets and samples have no cotangents; weights are constants of the batch.
    return *gradients, None, jnp.zeros_like(weights), None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def sample_ids(logits: jax.Array, keys: jax.Array, places: jax.Array) -> jax.Array:
    """Draw one id from the softmax of each of the logits [B, K, V]: [B, K] int32, without gradient.

    A draw depends on the row's key (keys [B]) and the place (places [B, K] int32): slots of one place draw alike. One
    uniform number is inverted through the cumulative distribution, first by blocks and then inside a block.
    (The released code of Clark et al. 2020 adds Gumbel noise, a random number for each of V logits.)
    """

    def uniform(key, place):
        return jax.random.uniform(jax.random.fold_in(key, place), (), jnp.float32)

    B, K, V = logits.shape
    masses = jnp.exp(logits - logits.max(-1, keepdims=True))
    # Padding has no mass, so no draw falls on it.
    masses = jnp.pad(masses, ((0, 0), (0, 0), (0, -V % SAMPLE_BLOCK))).reshape(B, K, -1, SAMPLE_BLOCK)
    sums = masses.sum(-1)
    ends = jnp.cumsum(sums, axis=-1)
    # The last end is the total: masses need not be normalised.
    aim = jax.vmap(jax.vmap(uniform, (None, 0)))(keys, places)[..., None] * ends[..., -1:]
    block = jnp.sum(ends <= aim, axis=-1, keepdims=True)
    within = jnp.cumsum(jnp.take_along_axis(masses, block[..., None], axis=2)[:, :, 0], axis=-1)
    begins = jnp.take_along_axis(ends - sums, block, axis=-1)
    # Sums in two orders may differ in their last bit, which must not lead out of the block.
    aim = jnp.clip(aim - begins, 0, jnp.nextafter(within[..., -1:], jnp.float32(0)))
    ids = (block * SAMPLE_BLOCK + jnp.sum(within <= aim, axis=-1, keepdims=True))[..., 0]
    return jax.lax.stop_gradient(ids).astype(jnp.int32)


def sum_in_chunks(function: Callable, rows: int, learned, shared, given, known=()):
    """Sums of `function` over chunks of at most `rows` rows: a tuple of float32; the first is differentiated.

    function(learned, shared, given, known) receives a chunk [B, c, ...] of each array [B, T, ...] of `learned` and
    `given`, and `shared` and `known` whole. `learned` and `shared` have gradients, `given` and `known` none.
    """
    return _sum_in_chunks(function, rows, learned, shared, given, known)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum_in_chunks(function, rows, learned, shared, given, known):
    def run(tokens, _, all_need):
        shared, known = all_need
        parts = split_chunks(tokens, rows)

        def body(sums, part):
            return _add(sums, function(part[0], shared, part[1], known)), None

        return jax.lax.scan(body, _zeros(_chunk_shapes(function, parts, shared, known)), parts)

    return sharded_sum.summed(run, (learned, given), (), (shared, known))[0]


def _sum_in_chunks_forward(function, rows, learned, shared, given, known):
    def run(tokens, _, all_need):
        shared, known = all_need
        parts = split_chunks(tokens, rows)

        def body(carry, part):
            sums, d_shared = carry

            def first(learned, shared):
                more = function(learned, shared, part[1], known)
                return more[0], more

            # Forward and backward of one chunk before the next begins: its intermediates are dropped.
            _, backward, more = jax.vjp(first, part[0], shared, has_aux=True)
            d_learned, d_more = backward(jnp.ones((), jnp.float32))
            return (_add(sums, more), _add(d_shared, d_more)), d_learned

        # Gradients of what all chunks share are added up in float32, whatever the compute dtype.
        zeros = jax.tree.map(lambda array: jnp.zeros(array.shape, jnp.float32), shared)
        sums, d_learned = jax.lax.scan(body, (_zeros(_chunk_shapes(function, parts, shared, known)), zeros), parts)
        return sums, join_chunks(d_learned, jax.tree.leaves(tokens)[0].shape[1])

    (sums, d_shared), d_learned = sharded_sum.summed(run, (learned, given), (), (shared, known))
    d_shared = jax.tree.map(lambda d, a: d.astype(a.dtype), d_shared, shared)
    return sums, (d_learned, d_shared)


def _sum_in_chunks_backward(function, rows, residuals, cotangents):
    d_learned, d_shared = jax.tree.map(lambda d: cotangents[0].astype(d.dtype) * d, residuals)
    return d_learned, d_shared, None, None


_sum_in_chunks.defvjp(_sum_in_chunks_forward, _sum_in_chunks_backward)


def _chunk_shapes(function, parts, shared, known):
    """The shapes of what `function` returns for one chunk."""
    learned, given = jax.tree.map(lambda array: array[0], parts)
    return jax.eval_shape(function, learned, shared, given, known)


def _add(sums, more):
    return jax.tree.map(jnp.add, sums, more)


def _zeros(shapes):
    return jax.tree.map(lambda one: jnp.zeros(one.shape, jnp.float32), shapes)


def adaptive_cross_entropy(
    softmaxes: Sequence[tuple[jax.Array, jax.Array, jax.Array]], targets: jax.Array, weights: jax.Array, *, chunk=None
) -> jax.Array:
    """Cross-entropy of an adaptive softmax (Grave et al. 2017): weighted sum over targets [B, T], in nats, float32.

    A rare word costs its cluster's surprise in the first softmax and its own in the cluster's. softmaxes: hidden
    [B, T, E], matrix [C, E] and bias [C] of each (`models.layers.adaptive_softmax`); weights [B, T].
    """
    hidden = tuple(states for states, _, _ in softmaxes)
    shared = tuple((matrix.astype(states.dtype), bias) for states, matrix, bias in softmaxes)
    # As if all clusters were one vocabulary: their logits are made for every token.
    rows = chunk or rows_per_chunk(sum(len(matrix) for matrix, _ in shared))
    return sum_in_chunks(_adaptive_chunk, rows, hidden, shared, (targets, weights))[0]


def _adaptive_chunk(hidden, shared, given, _):
    targets, weights = given
    logits = [head_logits(states, *head) for states, head in zip(hidden, shared, strict=True)]
    # The first softmax has the frequent words, then one entry for each other cluster.
    start = first = logits[0].shape[-1] - (len(logits) - 1)
    place, nll = targets, 0.0
    for cluster, of_cluster in enumerate(logits[1:]):
        here = (targets >= start) & (targets < start + of_cluster.shape[-1])
        # In the first softmax a rare word is its cluster's entry.
        place = jnp.where(here, first + cluster, place)
        nll += jnp.where(here, _nll(of_cluster, targets - start), 0.0)
        start += of_cluster.shape[-1]
    return (jnp.sum(weights * (nll + _nll(logits[0], place))),)


def _nll(logits, place):
    """Negative log-probability of the word at `place`; of an index out of range, log Z."""
    # A mask instead of a gather, whose gradient would be a scatter.
    here = jnp.arange(logits.shape[-1])[None, None] == place[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(here, logits, 0.0), axis=-1)
