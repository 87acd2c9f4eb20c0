"""Shardings that gradients of matrices pass through while they are summed over devices.

Models do not know the mesh. `pretrain.parallel.mesh`, which lays parameters out, opens `gradient_shardings`; without
that scope everything here is the identity.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import jax

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
