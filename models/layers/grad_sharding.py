"""How gradients of matrices are added up over devices: said by who lays parameters out, and unknown to models."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import jax

Steps = Callable[[Sequence[str], Sequence[int]], Sequence[jax.sharding.Sharding]]  # of names and sizes of axes
_steps: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextmanager
def adding_up(steps: Steps) -> Iterator[None]:
    """In it a matrix's gradient is brought into the shardings that `steps` gives, one after the other."""
    token = _steps.set(steps)
    try:
        yield
    finally:
        _steps.reset(token)


def added_up(kernel: jax.Array, names: Sequence[str]) -> jax.Array:
    """The kernel itself, whose axes are called `names`; its gradient is added up as the scope says, if there is one."""
    shardings = _shardings(kernel, names)
    if not shardings:
        return kernel
    use = jax.custom_vjp(lambda kernel: kernel)

    def backward(_, gradient):
        for sharding in shardings:
            gradient = jax.lax.with_sharding_constraint(gradient, sharding)
        return (gradient,)

    use.defvjp(lambda kernel: (kernel, None), backward)
    return use(kernel)


def _shardings(array: jax.Array, names: Sequence[str]) -> Sequence[jax.sharding.Sharding]:
    steps = _steps.get()
    return steps(names, array.shape) if steps else ()


def resting(parameter: jax.Array, names: Sequence[str]) -> jax.sharding.Sharding | None:
    """Where a parameter lies whose axes are called `names`; None where it is split over nothing, or no scope says."""
    return next(iter(_shardings(parameter, names)[-1:]), None)
