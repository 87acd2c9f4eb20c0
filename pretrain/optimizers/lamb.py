"""LAMB (You et al. 2019): Adam's direction, as long as the parameter is."""

import jax
import optax

from pretrain.optimizers.adam import moments
from pretrain.optimizers.decay import decay
from pretrain.optimizers.layers import per_layer


def lamb(options, roles) -> optax.GradientTransformation:
    """Biases and norm gains keep a trust ratio of 1, as in ALBERT's release."""
    matrices = jax.tree.map(lambda role: role.matrix, roles)
    ratio = optax.masked(per_layer(optax.scale_by_trust_ratio(), roles), matrices)
    return optax.chain(moments(options), decay(options, roles), ratio)
