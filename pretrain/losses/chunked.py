"""Losses of logits that are never held at once: any function of them, chunk by chunk, with its gradient.

`losses.cross_entropy` is the one that is written out; here JAX differentiates.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from models.layers.chunks import in_chunks, whole
from pretrain.parallel import sharded_sum


def summed(function: Callable, rows: int, learned, shared, given, known=()):
    """The sums that `function` gives over chunks of at most `rows` rows: a tuple of float32, of which the first is
    differentiated and the others report.

    function(learned, shared, given, known) is given a chunk [B, c, ...] of each array of `learned` and `given`
    ([B, T, ...]), and all of `shared` and `known`. `learned` and `shared` have gradients, `given` and `known` none.
    The gradient is made together with the value, as that of `losses.cross_entropy`. A `function` of a module, or one
    that is hashed by what it is made of, is traced once.
    """
    return _summed(function, rows, learned, shared, given, known)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _summed(function, rows, learned, shared, given, known):
    def run(tokens, _, all_need):
        shared, known = all_need
        parts = in_chunks(tokens, rows)

        def body(sums, part):
            return _added(sums, function(part[0], shared, part[1], known)), None

        return jax.lax.scan(body, _zeros(_of_chunk(function, parts, shared, known)), parts)

    return sharded_sum.summed(run, (learned, given), (), (shared, known))[0]


def _forward(function, rows, learned, shared, given, known):
    def run(tokens, _, all_need):
        shared, known = all_need
        parts = in_chunks(tokens, rows)

        def body(carry, part):
            sums, d_shared = carry

            def first(learned, shared):
                found = function(learned, shared, part[1], known)
                return found[0], found

            _, back, found = jax.vjp(first, part[0], shared, has_aux=True)
            d_learned, more = back(jnp.ones((), jnp.float32))
            return (_added(sums, found), _added(d_shared, more)), d_learned

        zeros = jax.tree.map(lambda array: jnp.zeros(array.shape, jnp.float32), shared)
        sums, d_learned = jax.lax.scan(body, (_zeros(_of_chunk(function, parts, shared, known)), zeros), parts)
        return sums, whole(d_learned, jax.tree.leaves(tokens)[0].shape[1])

    (sums, d_shared), d_learned = sharded_sum.summed(run, (learned, given), (), (shared, known))
    d_shared = jax.tree.map(lambda d, a: d.astype(a.dtype), d_shared, shared)
    return sums, (d_learned, d_shared)


def _backward(function, rows, saved, cotangents):
    """Only the first sum carries gradient."""
    d_learned, d_shared = jax.tree.map(lambda d: cotangents[0].astype(d.dtype) * d, saved)
    return d_learned, d_shared, None, None


_summed.defvjp(_forward, _backward)


def _of_chunk(function, parts, shared, known):
    """The shapes that `function` gives."""
    learned, given = jax.tree.map(lambda array: array[0], parts)
    return jax.eval_shape(function, learned, shared, given, known)


def _added(sums, more):
    return jax.tree.map(jnp.add, sums, more)


def _zeros(shapes):
    return jax.tree.map(lambda one: jnp.zeros(one.shape, jnp.float32), shapes)
