"""AdamW and LAMB, and the optimizers of one average or sum: SGD, Adagrad, Lion."""

import jax
import jax.numpy as jnp
import optax

from pretrain.optimizers.transforms import by_layer, decay, map_roles, per_layer, skip_nonfinite, where


def adamw(options, roles) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015) with decoupled decay."""
    # Decay after the moments, so that they do not scale it (Loshchilov and Hutter 2019, algorithm 2).
    return optax.chain(moments(options, roles), decay(options, roles))


def lamb(options, roles) -> optax.GradientTransformation:
    """LAMB (You et al. 2019): Adam's direction, scaled to the norm of the parameter."""
    # Biases and norm gains keep a trust ratio of 1, as in ALBERT's release.
    matrices = jax.tree.map(lambda role: role.matrix, roles)
    ratio = optax.masked(per_layer(optax.scale_by_trust_ratio(), roles), matrices)
    # The ratio is that of the whole step, decay included (algorithm 2).
    return optax.chain(moments(options, roles), decay(options, roles), ratio)


def moments(options, roles) -> optax.GradientTransformationExtraArgs:
    """Adam's m / (sqrt(v) + eps). BERT, ALBERT, ELECTRA and XLNet have no `bias_correction`."""
    b1, b2, epsilon = options["b1"], options["b2"], options["epsilon"]

    def init(params):
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

    def update(updates, state, params=None, *, good=True):
        del params
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        # A bad update restores the moments before they are used: if the old ones were needed after the new, XLA would
        # copy both (8 bytes a parameter) before it writes the new in place.
        state = where(good, optax.ScaleByAdamState(count, mu, nu), state)
        mu, nu = state.mu, state.nu
        if options["bias_correction"]:
            mu, nu = (_correct_bias(*moment, count, roles) for moment in ((mu, b1), (nu, b2)))
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu), state

    return optax.GradientTransformationExtraArgs(init, update)


def _correct_bias(moment, decay, count, roles):
    """`moment` / (1 - decay^n), where n counts the updates since a parameter is trained."""
    if not any(any(role.begin) for role in jax.tree.leaves(roles)):
        return optax.tree.bias_correction(moment, decay, count)

    def correct(role, leaf):
        # Before its first update a moment is 0, whatever it is divided by.
        age = jnp.maximum(count - by_layer(role, role.begin, leaf), 1)
        return leaf / (1 - decay**age).astype(leaf.dtype)

    return map_roles(correct, roles, moment)


def sgd(options, roles) -> optax.GradientTransformation:
    """Stochastic gradient descent with momentum `b1`."""
    # v = b1 v + g, without a factor of 1 - b1.
    momentum = optax.trace(options["b1"]) if options["b1"] else optax.identity()
    return optax.chain(skip_nonfinite(momentum), decay(options, roles))


def adagrad(options, roles) -> optax.GradientTransformation:
    """Adagrad (Duchi et al. 2011)."""
    # Sums of squares start at 0.1, as in TensorFlow.
    scaled = optax.scale_by_rss(initial_accumulator_value=0.1, eps=options["epsilon"])
    return optax.chain(skip_nonfinite(scaled), decay(options, roles))


def lion(options, roles) -> optax.GradientTransformation:
    """Lion (Chen et al. 2023)."""
    average = optax.scale_by_lion(b1=options["b1"], b2=options["b2"])
    return optax.chain(skip_nonfinite(average), decay(options, roles))
