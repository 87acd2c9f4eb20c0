"""Optimisers that look at whole tensors, over layers that are stored stacked."""

import jax
import optax


def per_layer(transformation: optax.GradientTransformation, roles) -> optax.GradientTransformation:
    """`transformation` with each layer of a stacked parameter [L, ...] as a tensor of its own.

    Equal to running it over unstacked layers; for transformations that treat tensors one by one.
    """

    def init(params):
        return jax.vmap(transformation.init)(params)

    def update(updates, state, params=None):
        return jax.vmap(transformation.update)(updates, state, params)

    stacked = optax.GradientTransformation(init, update)
    labels = jax.tree.map(lambda role: "stacked" if role.stacked else "plain", roles)
    return optax.partition({"plain": transformation, "stacked": stacked}, labels)
