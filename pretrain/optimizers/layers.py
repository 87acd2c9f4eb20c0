"""Optimisers that look at whole tensors, over layers that are stored stacked."""

import jax
import optax


def per_layer(transformation: optax.GradientTransformation, roles) -> optax.GradientTransformation:
    """`transformation` with each layer of a stacked parameter [L, ...] as a tensor of its own.

    Equal to running it over unstacked layers; for transformations that treat tensors one by one. Stacks may differ in
    L, as an encoder's and a decoder's.
    """
    of_one_depth = optax.GradientTransformation(jax.vmap(transformation.init), jax.vmap(transformation.update))

    def of_depths(tree) -> optax.GradientTransformation:
        depths = jax.tree.map(lambda leaf: str(leaf.shape[0]), tree)
        several = set(jax.tree.leaves(depths))  # of one, the state keeps the structure that checkpoints have
        return optax.partition(dict.fromkeys(several, of_one_depth), depths) if len(several) > 1 else of_one_depth

    def init(params):
        return of_depths(params).init(params)

    def update(updates, state, params=None):
        return of_depths(updates).update(updates, state, params)

    stacked = optax.GradientTransformation(init, update)
    labels = jax.tree.map(lambda role: "stacked" if role.stacked else "plain", roles)
    return optax.partition({"plain": transformation, "stacked": stacked}, labels)
