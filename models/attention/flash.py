"""The algebra of attention computed in pieces (Rabe & Staats 2021; Dao et al. 2022).

A piece is a set of queries against some of their keys. It yields its own softmax-weighted values and the logarithm of
its normaliser, `lse`. Pieces over disjoint keys merge exactly, weighted by exp(lse); and once the total `lse` is known
each piece's weights, hence its gradients, can be computed again from queries and keys alone. So nothing of the size of
the score matrix is kept between forward and backward.

Shapes: query [..., T, H]; key, value [..., S, H]; visible broadcasts to [..., T, S]; lse, delta [..., T, 1] float32.
`drop` is None or the dropout factors [..., T, S]; `bias` None or something that broadcasts to them. The query is
already scaled.
"""

import jax
import jax.numpy as jnp

HIDDEN = -1e30  # score of a key that is not seen; finite, so that no difference of two is NaN


def product(equation, left, right):
    """The einsum, accumulated in float32."""
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def _scores(query, key, visible, bias):
    scores = product("...TH,...SH->...TS", query, key)
    if bias is not None:
        scores += bias.astype(jnp.float32)
    return jnp.where(visible, scores, HIDDEN)


def forward(query, key, value, visible, drop=None, bias=None):
    """One piece: its output [..., T, H] in float32 and its lse. Where a query sees nothing, lse is about `HIDDEN`."""
    scores = _scores(query, key, visible, bias)
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if drop is not None:
        weights *= drop
    out = product("...TS,...SH->...TH", weights.astype(value.dtype), value) / total
    return out, top + jnp.log(total)


def merge(pieces):
    """Merge [(output, lse), ...] over disjoint keys: the output, and the lse to give to `backward`.

    A query that sees nothing in any piece gets zeros, and an lse that makes its weights vanish.
    """
    lse = pieces[0][1]
    for _, other in pieces[1:]:
        lse = jnp.logaddexp(lse, other)
    blind = lse < HIDDEN / 2
    out = sum(out * jnp.exp(one - lse) for out, one in pieces) if len(pieces) > 1 else pieces[0][0]
    return jnp.where(blind, 0.0, out), jnp.where(blind, -HIDDEN, lse)


def backward(query, key, value, visible, lse, gradient, delta, drop=None, bias=None):
    """Gradients of one piece by query, key, value and scores, all float32.

    `lse` is the merged one; `delta` is sum(gradient * merged output) over H, which is what softmax subtracts.
    """
    weights = jnp.exp(_scores(query, key, visible, bias) - lse)
    d_weights = product("...TH,...SH->...TS", gradient, value)
    kept = weights
    if drop is not None:
        kept, d_weights = weights * drop, d_weights * drop
    d_scores = weights * (d_weights - delta)
    low = d_scores.astype(query.dtype)
    return (
        product("...TS,...SH->...TH", low, key),
        by_keys(low, query),
        by_keys(kept.astype(value.dtype), gradient),
        d_scores,
    )


def by_keys(scores, rows):
    """scores^T rows: [..., S, H]. On a CPU this order of the factors is up to three times faster, if XLA lets it be."""
    return jnp.swapaxes(jax.lax.optimization_barrier(product("...TS,...TH->...HS", scores, rows)), -1, -2)


def delta(gradient, out):
    """What the softmax's backward pass subtracts: [..., T, 1]."""
    return jnp.sum(gradient.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)


def heads_first(query, key, value, scale):
    """[B, T, N, H], [B, S, G, H] twice -> [B, N, T, H] scaled, [B, N, S, H] twice: contiguous matrices to multiply."""
    shared = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, shared, axis=2) if shared > 1 else x for x in (key, value))
    return tuple(jnp.swapaxes(x, 1, 2) for x in (query * scale, key, value))
