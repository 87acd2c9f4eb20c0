"""The algebra of attention computed in pieces (Rabe & Staats 2021; Dao et al. 2022).

A piece is a set of queries against some of their keys. It yields its own softmax-weighted values and the logarithm of
its normalizer, `lse` (log-sum-exp). Pieces over disjoint keys merge exactly, weighted by exp(lse). Once the total `lse`
is known, each piece's weights and gradients can be recomputed from queries and keys alone, so nothing of the size of
the score matrix is kept between forward and backward.

Shapes: query [..., T, H]; key, value [..., S, H]; visible broadcasts to [..., T, S]; lse, delta [..., T, 1] float32.
`drop` is None or the dropout factors [..., T, S]; `bias` is None or broadcasts to them. The query is already scaled.
"""

import jax
import jax.numpy as jnp

HIDDEN = -1e30  # score of a hidden key; finite, so that no difference of two is NaN


def product(equation, left, right):
    """The einsum, accumulated in float32."""
    # bfloat16 factors multiply at full speed; the float32 sum costs nothing and loses nothing over S terms.
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def _scores(query, key, visible, bias):
    scores = product("...TH,...SH->...TS", query, key)
    if bias is not None:
        scores += bias.astype(jnp.float32)
    return jnp.where(visible, scores, HIDDEN)


def forward(query, key, value, visible, drop=None, bias=None):
    """One piece: its output [..., T, H] in float32 and its lse, about `HIDDEN` for queries that see nothing."""
    scores = _scores(query, key, visible, bias)
    # Without the row's maximum exp would overflow at scores above 88.
    top = jnp.max(scores, axis=-1, keepdims=True)
    # Dropout comes after the normalizer: probabilities are dropped, and the rest is not rescaled to sum to 1.
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if drop is not None:
        weights *= drop
    out = product("...TS,...SH->...TH", weights.astype(value.dtype), value) / total
    return out, top + jnp.log(total)


def merge(pieces):
    """Merge [(output, lse), ...] over disjoint keys: the output, and the lse that `backward` takes."""
    # out = sum_p exp(lse_p - lse) out_p with lse = log sum_p exp(lse_p): the softmax over all keys, exactly.
    lse = pieces[0][1]
    for _, other in pieces[1:]:
        lse = jnp.logaddexp(lse, other)
    blind = lse < HIDDEN / 2
    out = sum(out * jnp.exp(one - lse) for out, one in pieces) if len(pieces) > 1 else pieces[0][0]
    # A query that sees nothing gets zeros, and an lse of 1e30 that makes exp(score - lse) vanish in the backward pass.
    return jnp.where(blind, 0.0, out), jnp.where(blind, -HIDDEN, lse)


def backward(query, key, value, visible, lse, gradient, delta, drop=None, bias=None):
    """Gradients of one piece by query, key, value and scores, all float32.

    `lse` is the merged one, `delta` as `delta` returns it.
    """
    # softmax' = p * (dp - sum_j p_j dp_j), and that sum is gradient . output, whichever piece the keys are in.
    weights = jnp.exp(_scores(query, key, visible, bias) - lse)
    d_weights = product("...TH,...SH->...TS", gradient, value)
    dropped = weights
    if drop is not None:
        dropped, d_weights = weights * drop, d_weights * drop
    d_scores = weights * (d_weights - delta)
    low = d_scores.astype(query.dtype)
    return (
        product("...TS,...SH->...TH", low, key),
        by_keys(low, query),
        by_keys(dropped.astype(value.dtype), gradient),
        d_scores,
    )


def by_keys(scores, rows):
    """scores^T rows: [..., S, H]."""
    # On a CPU this order of the factors is up to three times faster; the barrier keeps XLA from swapping them.
    return jnp.swapaxes(jax.lax.optimization_barrier(product("...TS,...TH->...HS", scores, rows)), -1, -2)


def delta(gradient, out):
    """The term that the softmax's backward pass subtracts, sum(gradient * merged output) over H: [..., T, 1]."""
    # sum_j p_j dp_j = gradient . output (Dao et al. 2022, appendix B): no second pass over the keys.
    return jnp.sum(gradient.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)


def heads_first(query, key, value, scale):
    """[B, T, N, H], [B, S, G, H] twice -> [B, N, T, H] scaled, [B, N, S, H] twice: contiguous matrices to multiply."""
    shared = query.shape[2] // key.shape[2]
    # Grouped heads are repeated: products of equal head counts are one batched product.
    key, value = (jnp.repeat(x, shared, axis=2) if shared > 1 else x for x in (key, value))
    return tuple(jnp.swapaxes(x, 1, 2) for x in (query * scale, key, value))
