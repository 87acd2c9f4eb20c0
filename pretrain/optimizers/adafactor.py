"""Adafactor (Shazeer and Stern 2018), which keeps a row and a column for the second moments of a matrix."""

import math

import jax
import optax

from pretrain.optimizers.decay import decay
from pretrain.optimizers.layers import per_layer
from pretrain.optimizers.roles import each
from pretrain.optimizers.skip_nonfinite import heeding


def adafactor(options, roles) -> optax.GradientTransformation:
    """As T5 trains with it: factored, update clipping 1, scaled by RMS(param)."""
    tensorwise = optax.chain(
        optax.scale_by_factored_rms(decay_rate=0.8, epsilon=1e-30),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(1e-3),
    )
    return optax.chain(heeding(per_layer(as_on_paper(tensorwise, roles), roles)), decay(options, roles))


def as_on_paper(transformation: optax.GradientTransformation, roles) -> optax.GradientTransformation:
    """`transformation` with a layer's matrices as [inputs, outputs] and all else as vectors.

    Attention's kernels are stored [D, N, H] and [N, H, D], its biases [N, H]. To an optimiser that factors they are
    [D, N H], [N H, D] and [N H], as in T5: the two largest of three axes would leave the third in its state.
    """

    def reshape(role, leaf):
        return leaf.reshape(math.prod(leaf.shape[: role.inputs]), -1) if role.matrix else leaf.reshape(-1)

    def flat(tree):
        return each(reshape, roles, tree)

    def update(updates, state, params=None):
        changed, state = transformation.update(flat(updates), state, None if params is None else flat(params))
        return jax.tree.map(lambda new, old: new.reshape(old.shape), changed, updates), state

    return optax.GradientTransformation(lambda params: transformation.init(flat(params)), update)
