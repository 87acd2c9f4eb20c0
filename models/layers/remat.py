"""Rematerialization: what the backward pass recomputes instead of keeping in memory."""

from collections.abc import Callable, Mapping

import jax

DOT_NAME = "product"  # `checkpoint_name` of products with weights, by which the policies below find them

_weight_dots = jax.checkpoint_policies.save_only_these_names(DOT_NAME)
# Values of `model.remat`: policies of `jax.checkpoint` around a layer.
REMAT: Mapping[str, Callable | None] = {
    "none": None,  # keep every activation
    "full": jax.checkpoint_policies.nothing_saveable,  # keep each layer's input alone: 4/3 of the FLOPs
    # Keep all matrix products and recompute what is element-wise: little time, but attention's scores stay in memory.
    "dots": jax.checkpoint_policies.save_from_both_policies(_weight_dots, jax.checkpoint_policies.dots_saveable),
    # Keep products with weights and recompute attention, whose scores grow with T^2 where the others grow with T.
    "dots_no_batch": _weight_dots,
}


def remat_elementwise(function: Callable) -> Callable:
    """Wrap an element-wise function so that only its inputs are kept for the backward pass.

    A GELU or a norm would otherwise keep four or five arrays of its input's size: half of what a GPT-2 layer keeps.
    """
    # Within a scan or under jit the barrier of `prevent_cse` only hinders fusion.
    return jax.checkpoint(function, prevent_cse=False)
