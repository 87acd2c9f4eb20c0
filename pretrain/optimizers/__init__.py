"""Optimisers, from optax, assembled as the papers have them.

Four things optax leaves to its user are settled here once. Decay: decoupled, on matrices but not on
biases and norm gains, whatever their rank. Bias correction: can be off (BERT, ALBERT, ELECTRA, XLNet).
Layers: parameters of all layers are stored stacked, [L, ...], so an optimiser that looks at a whole
tensor (LAMB's trust ratio, Adafactor's RMS and factors, Muon's orthogonalisation) is mapped over L.
Types: averages are float32, whatever type parameters are stored in (`config.model.param_dtype`): of 16 bits, an
average whose decay is 0.999 would never move.

Which parameters are matrices and which are stacked, models declare; nothing here knows a parameter by its name.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from pretrain.errors import UserError, nearest
from pretrain.optimizers.adafactor import adafactor
from pretrain.optimizers.adam import adamw
from pretrain.optimizers.decay import DECAY
from pretrain.optimizers.lamb import lamb
from pretrain.optimizers.momentum import adagrad, lion, sgd
from pretrain.optimizers.muon import muon
from pretrain.optimizers.schedules import schedule
from pretrain.optimizers.skip_nonfinite import heeding

OPTIMIZERS = {"adamw": adamw, "adafactor": adafactor, "adagrad": adagrad, "lamb": lamb}
OPTIMIZERS |= {"sgd": sgd, "lion": lion, "muon": muon}


def build(options: Mapping, schedule_options: Mapping, steps: int, roles) -> optax.GradientTransformation:
    """The optimiser of `config.optimizer`, from gradients to the change of the parameters, whose `roles` it is told.

    Its `update` is told too whether the update is `good`: one that is not changes no state (`good.py`).
    """
    name = options["name"]
    if name not in OPTIMIZERS:
        raise UserError(f"config.optimizer.name is '{name}'{nearest(name, OPTIMIZERS)}")
    if options["decay"] not in DECAY:
        raise UserError(f"config.optimizer.decay is '{options['decay']}'{nearest(options['decay'], DECAY)}")
    clip = optax.clip_by_global_norm(options["clip"]) if options["clip"] else optax.identity()
    rate = heeding(optax.scale_by_learning_rate(schedule(schedule_options, steps)))
    return _in_float32(optax.chain(clip, OPTIMIZERS[name](options, roles), rate))


def _in_float32(transformation: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """`transformation` as if gradients and parameters were float32, which its state and the change then are."""

    def wide(tree):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)

    def update(updates, state, params, **told):
        return transformation.update(wide(updates), state, wide(params), **told)

    return optax.GradientTransformationExtraArgs(lambda params: transformation.init(wide(params)), update)
