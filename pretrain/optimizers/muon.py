"""Muon (Jordan et al. 2024): orthogonalized momentum."""

import math

import jax
import optax

from pretrain.optimizers.adam import moments
from pretrain.optimizers.transforms import decay, map_roles, per_layer, skip_nonfinite


def muon(options, roles) -> optax.GradientTransformation:
    """Muon on the matrices inside the layers, AdamW on everything else.

    Nesterov momentum is Optax's, with both terms bias-corrected. After some 1 / (1 - b1) updates its direction is
    Jordan's gradient + b1 * momentum; before, the newest gradient weighs more.
    """

    def dimensions(role, leaf):
        inputs = tuple(range(role.inputs))
        return optax.contrib.MuonDimensionNumbers(inputs, tuple(range(role.inputs, leaf.ndim)))

    orthogonal = optax.contrib.scale_by_muon(
        beta=options["b1"], weight_dimension_numbers=lambda tree: map_roles(dimensions, roles, tree)
    )

    def match_adam(updates, params=None):
        del params

        def scale(role, update):
            # Adam's updates have a root-mean-square of about 0.2 (Liu et al. 2025, section 2.2), an orthogonal [A, B]
            # matrix has 1 / sqrt(max(A, B)): scaled, one learning rate serves both.
            inputs = math.prod(update.shape[: role.inputs])
            return update * 0.2 * math.sqrt(max(inputs, update.size // inputs))

        return map_roles(scale, roles, updates)

    # Embeddings and heads do not map hidden states to hidden states: AdamW updates them, as in the release.
    labels = jax.tree.map(lambda role: "muon" if role.stacked and role.matrix else "adam", roles)
    rules = {
        "muon": skip_nonfinite(per_layer(optax.chain(orthogonal, optax.stateless(match_adam)), roles)),
        "adam": moments({**options, "b1": 0.9, "bias_correction": True}, roles),
    }
    return optax.chain(optax.partition(rules, labels), decay(options, roles))
