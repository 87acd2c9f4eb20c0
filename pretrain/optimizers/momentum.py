"""Optimisers of one average or sum."""

import optax

from pretrain.optimizers.decay import decay
from pretrain.optimizers.skip_nonfinite import heeding


def sgd(options, roles) -> optax.GradientTransformation:
    """Stochastic gradient descent, with momentum b1."""
    momentum = optax.trace(options["b1"]) if options["b1"] else optax.identity()
    return optax.chain(heeding(momentum), decay(options, roles))


def adagrad(options, roles) -> optax.GradientTransformation:
    """Adagrad (Duchi et al. 2011), whose sums of squares begin at 0.1, as TensorFlow's do."""
    scaled = optax.scale_by_rss(initial_accumulator_value=0.1, eps=options["epsilon"])
    return optax.chain(heeding(scaled), decay(options, roles))


def lion(options, roles) -> optax.GradientTransformation:
    """Lion (Chen et al. 2023)."""
    average = optax.scale_by_lion(b1=options["b1"], b2=options["b2"])
    return optax.chain(heeding(average), decay(options, roles))
