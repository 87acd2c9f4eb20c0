"""The chunked cross-entropy against the plain one, in value and in every gradient."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrain.losses.cross_entropy import cross_entropy
from pretrain.losses.objective import perplexity

B, T, D, V = 3, 12, 8, 31


def plain(hidden, matrix, bias, targets, weights, z_loss, smoothing):
    """All logits at once, differentiated by JAX: (objective, nll)."""
    logits = jnp.einsum("btd,vd->btv", hidden, matrix) + (0 if bias is None else bias[None, None])
    log_p = jax.nn.log_softmax(logits)
    label = jax.nn.one_hot(targets, V)
    nll = -(label * log_p).sum(-1)
    smooth = (1 - smoothing) * nll - smoothing * log_p.mean(-1)
    z = jax.nn.logsumexp(logits, -1)
    return (weights * (smooth + z_loss * z**2)).sum(), (weights * nll).sum()


def inputs(T=T):
    keys = jax.random.split(jax.random.key(0), 5)
    hidden, matrix = jax.random.normal(keys[0], (B, T, D)), jax.random.normal(keys[1], (V, D))
    bias, targets = jax.random.normal(keys[2], (V,)), jax.random.randint(keys[3], (B, T), 0, V)
    return hidden, matrix, bias, targets, jax.random.bernoulli(keys[4], 0.7, (B, T)).astype(jnp.float32)


@pytest.mark.parametrize(
    ("length", "chunk", "z_loss", "smoothing"),
    [(12, 7, 0.0, 0.0), (12, 10_000, 1e-2, 0.0), (12, 18, 0.0, 0.1), (13, 18, 1e-2, 0.1)],
)
def test_equals_all_logits_at_once(length, chunk, z_loss, smoothing):
    *differentiable, targets, weights = inputs(length)
    options = {"z_loss": z_loss, "label_smoothing": smoothing, "chunk": chunk}

    def ours(*a):
        return cross_entropy(*a, targets, weights, **options)

    def oracle(*a):
        return plain(*a, targets, weights, z_loss, smoothing)

    np.testing.assert_allclose(ours(*differentiable), oracle(*differentiable), rtol=1e-6)
    gradients = [jax.grad(lambda *a, f=f: f(*a)[0] * 0.5, argnums=(0, 1, 2))(*differentiable) for f in (ours, oracle)]
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)  # float32 sums over 36 positions


def test_chunks_are_large_enough():
    """16 MB of logits at a time, and 512 rows at least: 8,192 rows of 512 ids are 4 turns fewer than by rows alone.

    So it is where the rows, 3 x 607, have no divisor near that: T5's targets of 8,192 tokens.
    """

    def turns(rows, vocab):
        shapes = [
            jax.ShapeDtypeStruct(shape, dtype)
            for shape, dtype in zip(
                [(1, rows, D), (vocab, D), (1, rows), (1, rows)],
                ["float32", "float32", "int32", "float32"],
                strict=True,
            )
        ]
        traced = jax.make_jaxpr(lambda hidden, matrix, *rest: cross_entropy(hidden, matrix, None, *rest))(*shapes)
        return int(str(traced).split("length=")[1].split()[0])

    assert [turns(2**14, vocab) for vocab in (65, 512, 8192, 50_257)] == [1, 2, 32, 32]
    assert turns(1821, 50_257) == 4


def test_weight_of_zero_has_no_gradient():
    hidden, matrix, bias, targets, weights = inputs()
    off = weights.at[0, 3].set(0.0)
    grad = jax.grad(lambda h: cross_entropy(h, matrix, bias, targets, off)[0])(hidden)
    assert not np.any(np.asarray(grad[0, 3]))
    changed = cross_entropy(hidden.at[0, 3].set(7.0), matrix, bias, targets, off)
    np.testing.assert_allclose(changed, cross_entropy(hidden, matrix, bias, targets, off), rtol=1e-6)


def test_large_logits_stay_finite():
    hidden, matrix, bias, targets, weights = inputs()
    value, grads = jax.value_and_grad(lambda h: cross_entropy(h, matrix, bias, targets, weights)[0])(hidden * 1e4)
    assert np.isfinite(value)
    assert np.all(np.isfinite(grads))


def test_accuracy_counts_the_likeliest_targets():
    hidden, matrix, bias, targets, weights = inputs()
    best = (jnp.einsum("btd,vd->btv", hidden, matrix) + bias[None, None]).argmax(-1)
    targets = jnp.where(jnp.arange(T)[None] % 3 == 0, best, targets)
    without = cross_entropy(hidden, matrix, bias, targets, weights, chunk=7)
    *with_hits, hits = cross_entropy(hidden, matrix, bias, targets, weights, accuracy=True, chunk=7)
    assert (without[0], without[1]) == tuple(with_hits)
    assert hits == (weights * (best == targets)).sum() > 5
    gradients = [
        jax.grad(lambda h, on=on: cross_entropy(h, matrix, bias, targets, weights, accuracy=on)[0])(hidden)
        for on in (True, False)
    ]
    np.testing.assert_array_equal(*gradients)


@pytest.mark.parametrize(("nats", "expected"), [(0.0, 1.0), (1.0, math.e), (709.0, math.exp(709)), (1e15, math.inf)])
def test_perplexity(nats, expected):
    assert perplexity(nats) == expected
    assert math.isnan(perplexity(math.nan))
