"""Updates that are not good, of which an optimiser is told: `update(..., good=False)` leaves its state as it is."""

import jax
import jax.numpy as jnp
import optax


def where(good, new, old):
    """The tree `new` where the update is good, else `old`."""
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)


def heeding(transformation: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`transformation`, of which nothing is changed by an update that is not good."""

    def update(updates, state, params=None, *, good=True):
        changed, after = transformation.update(updates, state, params)
        return changed, where(good, after, state)

    return optax.GradientTransformationExtraArgs(transformation.init, update)
