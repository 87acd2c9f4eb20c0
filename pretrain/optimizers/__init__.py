"""Optimizers, from optax, assembled as the papers have them.

Optax leaves these choices to its users; they are made here once. Decay: decoupled, on matrices but not on biases and
gains. Layers: parameters are stacked, [L, ...], so what looks at a whole tensor (LAMB's trust ratio, Adafactor's
factors, Muon's orthogonalization) is mapped over L. Types: state is float32 whatever `config.model.param_dtype` is. In
16 bits an average with decay 0.999 would never move.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from pretrain.errors import lookup
from pretrain.optimizers.adafactor import adafactor
from pretrain.optimizers.adam import adagrad, adamw, lamb, lion, sgd
from pretrain.optimizers.muon import muon
from pretrain.optimizers.schedules import schedule
from pretrain.optimizers.transforms import scale_by_depth, skip_nonfinite

OPTIMIZERS = {
    "adamw": adamw,
    "adafactor": adafactor,
    "adagrad": adagrad,
    "lamb": lamb,
    "sgd": sgd,
    "lion": lion,
    "muon": muon,
}


def build(options: Mapping, schedule_options: Mapping, steps: int, roles) -> optax.GradientTransformation:
    """Build the optimizer of `config.optimizer` for parameters with these `roles`.

    `update(..., good=False)` leaves its state unchanged. Errors: UserError for unknown names.
    """
    optimizer = lookup("config.optimizer.name", options["name"], OPTIMIZERS)
    # Clipping first: moments see clipped gradients, as in BERT and T5.
    clip = optax.clip_by_global_norm(options["clip"]) if options["clip"] else optax.identity()
    rate = skip_nonfinite(optax.scale_by_learning_rate(schedule(schedule_options, steps)))
    # Last, so that it scales decay too, and trust ratios and clipped updates do not cancel it.
    depth = scale_by_depth(options, roles)
    return _in_float32(optax.chain(clip, optimizer(options, roles), rate, *[depth] * bool(depth)))


def _in_float32(transformation: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """`transformation` of gradients and parameters cast to float32."""

    def cast(tree):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)

    def update(updates, state, params, **options):
        return transformation.update(cast(updates), state, cast(params), **options)

    return optax.GradientTransformationExtraArgs(lambda params: transformation.init(cast(params)), update)
