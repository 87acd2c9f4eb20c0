"""Optimisers of one moving average."""

import optax

from pretrain.optimizers.decay import decay
from pretrain.optimizers.good import heeding


def sgd(options, roles) -> optax.GradientTransformation:
    """Stochastic gradient descent, with momentum b1."""
    momentum = optax.trace(options["b1"]) if options["b1"] else optax.identity()
    return optax.chain(heeding(momentum), decay(options, roles))


def lion(options, roles) -> optax.GradientTransformation:
    """Lion (Chen et al. 2023)."""
    average = optax.scale_by_lion(b1=options["b1"], b2=options["b2"])
    return optax.chain(heeding(average), decay(options, roles))
