"""Adam (Kingma and Ba 2015), with decoupled decay AdamW; and without the correction of its first averages."""

import jax
import jax.numpy as jnp
import optax

from pretrain.optimizers.decay import decay


def adamw(options, roles) -> optax.GradientTransformation:
    """AdamW."""
    return optax.chain(moments(options), decay(options, roles))


def moments(options) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps), bias-corrected or, with `bias_correction` off, not (BERT, ALBERT, ELECTRA, XLNet)."""
    adam = {"b1": options["b1"], "b2": options["b2"], "eps": options["epsilon"]}
    return optax.scale_by_adam(**adam) if options["bias_correction"] else _uncorrected_adam(**adam)


def _uncorrected_adam(b1, b2, eps) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) with plain moving averages (the BERT release's optimiser)."""

    def init(params):
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

    def update(updates, state, params=None):
        del params
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment(updates, state.nu, b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)
