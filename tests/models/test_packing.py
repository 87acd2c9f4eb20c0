"""Documents that share a row never see one another, in values or in gradients."""

import jax
import jax.numpy as jnp
import numpy as np

SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0]])
TOKENS = np.array([[5, 6, 7, 8, 9, 1, 2, 3, 4, 0, 0]])


def run(model, params, tokens, weights):
    """Logits, and the gradient of a loss on the weighted positions alone."""

    @jax.jit
    def gradient(params, tokens):
        def loss(params):
            hidden = model.apply(params, tokens, positions=POSITIONS, segments=SEGMENTS).hidden
            logits = model.apply(params, hidden, method="logits")
            return (jax.nn.logsumexp(logits, -1) * weights).sum(), logits

        return jax.grad(loss, has_aux=True)(params)

    gradient, logits = gradient(params, tokens)
    return np.asarray(logits), gradient


def test_a_document_changes_nothing_of_another(small):
    model, params = small(positions="learned")
    for mine in (1, 2):
        own = np.equal(SEGMENTS, mine)
        weights = own.astype(np.float32)
        other = np.where(own, TOKENS, (TOKENS + 11) % model.vocab_size)  # the padding changes too
        before, gradient = run(model, params, TOKENS, weights)
        after, gradient_after = run(model, params, other, weights)
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
    model, params = small()
    weights = (SEGMENTS != 0).astype(np.float32)
    _, gradient = run(model, params, jnp.where(SEGMENTS == 0, 30, TOKENS), weights)
    # Token 30 is padding alone, so its row moves by the head's share only: the same as any absent token's
    tied = gradient["params"]["tokens"]
    untied_model, untied = small(tied_head=False)
    _, gradient = run(untied_model, untied, jnp.where(SEGMENTS == 0, 30, TOKENS), weights)
    np.testing.assert_array_equal(gradient["params"]["tokens"][30], 0.0)
    assert np.abs(gradient["params"]["tokens"][5]).max() > 0 and np.isfinite(tied).all()
