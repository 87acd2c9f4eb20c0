"""The matrix-product ceiling of a device, for those without a data sheet."""

import time

import jax
import jax.numpy as jnp
import numpy as np


def measure_matmul_ceiling(dtype: str, size: int, repeats: int) -> float:
    """FLOP/s of the default device on a product of two [size, size] matrices: the median of `repeats`.

    No program of this dtype can be faster on this machine.
    """
    a, b = jax.random.normal(jax.random.key(0), (2, size, size), dtype)
    product = jax.jit(jnp.matmul)
    product(a, b).block_until_ready()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        product(a, b).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / float(np.median(seconds))
