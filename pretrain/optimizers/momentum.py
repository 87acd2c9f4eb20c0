"""Optimisers of one moving average."""

import optax

from pretrain.optimizers.decay import decay


def sgd(options, roles) -> optax.GradientTransformation:
    """Stochastic gradient descent, with momentum b1."""
    momentum = optax.trace(options["b1"]) if options["b1"] else optax.identity()
    return optax.chain(momentum, decay(options, roles))


def lion(options, roles) -> optax.GradientTransformation:
    """Lion (Chen et al. 2023)."""
    return optax.chain(optax.scale_by_lion(b1=options["b1"], b2=options["b2"]), decay(options, roles))
