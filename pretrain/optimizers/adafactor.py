"""Adafactor (Shazeer and Stern 2018): second moments of a matrix, factored into a row and a column."""

import math

import jax
import optax

from pretrain.optimizers.transforms import decay, map_roles, per_layer, skip_nonfinite


def adafactor(options, roles) -> optax.GradientTransformation:
    """Adafactor as T5 uses it: decay rate 0.8, update clipping at 1, steps relative to RMS(parameter)."""
    # The order of T5's release: factored moments, update clipped to an RMS of 1, scaled by the parameter's RMS.
    tensorwise = optax.chain(
        optax.scale_by_factored_rms(decay_rate=0.8, epsilon=1e-30),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(1e-3),
    )
    return optax.chain(skip_nonfinite(per_layer(as_matrices(tensorwise, roles), roles)), decay(options, roles))


def as_matrices(transformation: optax.GradientTransformation, roles) -> optax.GradientTransformation:
    """`transformation` over a layer's matrices as [inputs, outputs], and everything else as vectors.

    Attention's kernels are stored as [D, N, H] and [N, H, D], its biases as [N, H]; T5 has [D, N H], [N H, D], [N H].
    Factoring the two largest of three axes would leave the third in the optimizer's state.
    """

    def reshape(role, leaf):
        return leaf.reshape(math.prod(leaf.shape[: role.inputs]), -1) if role.matrix else leaf.reshape(-1)

    def flat(tree):
        return map_roles(reshape, roles, tree)

    def update(updates, state, params=None):
        changed, state = transformation.update(flat(updates), state, None if params is None else flat(params))
        return jax.tree.map(lambda new, old: new.reshape(old.shape), changed, updates), state

    return optax.GradientTransformation(lambda params: transformation.init(flat(params)), update)
