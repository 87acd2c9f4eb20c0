"""Muon (Jordan et al. 2024): momentum, made orthogonal."""

import math

import jax
import optax

from pretrain.optimizers.adam import moments
from pretrain.optimizers.decay import decay
from pretrain.optimizers.layers import per_layer
from pretrain.optimizers.roles import each
from pretrain.optimizers.skip_nonfinite import heeding


def muon(options, roles) -> optax.GradientTransformation:
    """Muon on the matrices inside the layers, AdamW on everything else.

    Nesterov's momentum is Optax's, which corrects both of its terms for their first updates as Adam's averages are.
    What is made orthogonal is Jordan's sum, gradient + b1 * momentum, once some 1 / (1 - b1) updates are made; before,
    the newest gradient weighs more in it.

    Orthogonal updates are scaled to the root-mean-square of Adam's, about .2 (Liu et al. 2025, section
    2.2), so one learning rate serves both.
    """

    def dimensions(role, leaf):
        inputs = tuple(range(role.inputs))
        return optax.contrib.MuonDimensionNumbers(inputs, tuple(range(role.inputs, leaf.ndim)))

    orthogonal = optax.contrib.scale_by_muon(
        beta=options["b1"], weight_dimension_numbers=lambda tree: each(dimensions, roles, tree)
    )

    def match_adam(updates, params=None):
        del params

        def scale(role, update):
            inputs = math.prod(update.shape[: role.inputs])
            return update * 0.2 * math.sqrt(max(inputs, update.size // inputs))

        return each(scale, roles, updates)

    labels = jax.tree.map(lambda role: "muon" if role.stacked and role.matrix else "adam", roles)
    rules = {
        "muon": heeding(per_layer(optax.chain(orthogonal, optax.stateless(match_adam)), roles)),
        "adam": moments({**options, "b1": 0.9, "bias_correction": True}),
    }
    return optax.chain(optax.partition(rules, labels), decay(options, roles))
