"""Documents that share a row never see one another, in values or in gradients."""

import jax
import numpy as np
import pytest

SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0]])
TOKENS = np.array([[5, 6, 7, 8, 9, 1, 2, 3, 4, 0, 0]])


def runner(model):
    """(params, tokens, weights) -> logits, and the gradient of a loss on the weighted positions alone."""

    @jax.jit
    def run(params, tokens, weights):
        def loss(params):
            hidden = model.apply(params, tokens, positions=POSITIONS, segments=SEGMENTS).hidden
            logits = model.apply(params, hidden, method="logits")
            return (jax.nn.logsumexp(logits, -1) * weights).sum(), logits

        gradient, logits = jax.grad(loss, has_aux=True)(params)
        return logits, gradient

    return run


KINDS = {
    "dense": ("dense",),
    "local and strided": ("local_3", "strided_4"),
    "fixed, and heads of two patterns": ("fixed_4_1_by_head", "column_4+block_4"),
}


@pytest.mark.parametrize("kind", ["dense", *(pytest.param(kind, marks=pytest.mark.slow) for kind in list(KINDS)[1:])])
def test_a_document_changes_nothing_of_another(small, kind):
    model, params = small(positions="learned", attention=KINDS[kind])
    run = runner(model)
    for mine in (1, 2):
        own = np.equal(SEGMENTS, mine)
        weights = own.astype(np.float32)
        other = np.where(own, TOKENS, (TOKENS + 11) % model.vocab_size)  # the padding changes too
        before, gradient = run(params, TOKENS, weights)
        after, gradient_after = run(params, other, weights)
        # Hidden keys weigh exactly 0, so the equality is exact
        np.testing.assert_array_equal(before[own], after[own])
        assert np.abs(before - after)[~own].max() > 1e-3
        jax.tree.map(np.testing.assert_array_equal, gradient, gradient_after)


def test_a_packed_document_is_the_document_alone(small):
    model, params = small(positions="rotary")
    packed = model.apply(params, TOKENS, positions=POSITIONS, segments=SEGMENTS).hidden
    alone = model.apply(params, TOKENS[:, 4:9]).hidden
    np.testing.assert_allclose(packed[:, 4:9], alone, atol=1e-5)
    assert np.isfinite(packed).all()


def test_padding_gets_no_gradient(small):
    model, params = small(tied_head=False)
    weights = (SEGMENTS != 0).astype(np.float32)
    _, gradient = runner(model)(params, np.where(SEGMENTS == 0, 30, TOKENS), weights)
    # Token 30 stands at the padding alone, so its row of the table has no part in the loss
    np.testing.assert_array_equal(gradient["params"]["tokens"][30], 0.0)
    assert np.abs(gradient["params"]["tokens"][5]).max() > 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
