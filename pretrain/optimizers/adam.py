"""Adam (Kingma and Ba 2015), with decoupled decay AdamW; and without the correction of its first averages."""

import jax
import jax.numpy as jnp
import optax

from pretrain.optimizers.decay import decay
from pretrain.optimizers.skip_nonfinite import where


def adamw(options, roles) -> optax.GradientTransformation:
    """AdamW."""
    return optax.chain(moments(options), decay(options, roles))


def moments(options) -> optax.GradientTransformationExtraArgs:
    """m / (sqrt(v) + eps), bias-corrected or, with `bias_correction` off, not (BERT, ALBERT, ELECTRA, XLNet).

    An update that is not good leaves the averages as they are before they are used, so that parameters are worked out
    from the new averages alone: if the old were needed too, XLA would copy both before it writes the new in place.
    """
    b1, b2, epsilon = options["b1"], options["b2"], options["epsilon"]

    def init(params):
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

    def update(updates, state, params=None, *, good=True):
        del params
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        state = where(good, optax.ScaleByAdamState(count, mu, nu), state)
        mu, nu = state.mu, state.nu
        if options["bias_correction"]:
            mu, nu = optax.tree.bias_correction(mu, b1, count), optax.tree.bias_correction(nu, b2, count)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu), state

    return optax.GradientTransformationExtraArgs(init, update)
