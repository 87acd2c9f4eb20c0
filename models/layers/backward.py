"""The backward pass: what it recomputes, and the shardings that gradients pass through while devices sum them.

Models do not know the mesh. `pretrain.parallel.mesh`, which lays parameters out, opens `gradient_shardings`; without
that scope `constrain_gradient` is the identity.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

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


Steps = Callable[[Sequence[str], Sequence[int]], Sequence[jax.sharding.Sharding]]  # (axis names, sizes) -> shardings
_steps: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextmanager
def gradient_shardings(steps: Steps) -> Iterator[None]:
    """Within it, every matrix's gradient is constrained to the shardings that `steps` returns, one after the other."""
    token = _steps.set(steps)
    try:
        yield
    finally:
        _steps.reset(token)


def constrain_gradient(kernel: jax.Array, names: Sequence[str]) -> jax.Array:
    """The kernel, with axes `names`, unchanged; its gradient is constrained as the scope says."""
    shardings = _shardings(kernel, names)
    if not shardings:
        return kernel
    identity = jax.custom_vjp(lambda kernel: kernel)

    def backward(_, gradient):
        # Each constraint turns one all-reduce into a reduce-scatter over one mesh axis.
        for sharding in shardings:
            gradient = jax.lax.with_sharding_constraint(gradient, sharding)
        return (gradient,)

    identity.defvjp(lambda kernel: (kernel, None), backward)
    return identity(kernel)


def parameter_sharding(parameter: jax.Array, names: Sequence[str]) -> jax.sharding.Sharding | None:
    """How a parameter with axes `names` is stored: the last of its shardings. None if unsharded or without a scope."""
    return next(iter(_shardings(parameter, names)[-1:]), None)


def _shardings(array: jax.Array, names: Sequence[str]) -> Sequence[jax.sharding.Sharding]:
    steps = _steps.get()
    return steps(names, array.shape) if steps else ()
