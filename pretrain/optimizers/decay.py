"""Weight decay, decoupled from the gradient (Loshchilov and Hutter 2019)."""

import jax
import optax

# config.optimizer.decay: what decays.
DECAY = {"matrices": lambda role: role.matrix, "all": lambda role: True}


def decay(options, roles) -> optax.GradientTransformation:
    """Adds weight_decay times the parameters that decay; none where weight_decay is 0."""
    if not options["weight_decay"]:
        return optax.identity()
    return optax.add_decayed_weights(options["weight_decay"], mask=jax.tree.map(DECAY[options["decay"]], roles))
