"""A CPU run keeps the memory that a step frees for the step after it."""

import ctypes
import os
import sys

import jax

from pretrain.errors import UserError

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # M_... of mallopt(3)
LARGEST_HEAP = 64 * 2**20  # bytes of one heap of a thread's arena


def keep_freed_memory() -> bool:
    """Tells glibc to keep what is freed, where steps run on a CPU; returns whether it does. Before any device is used.

    A step's buffers are freed when it ends. glibc hands such large pieces back to the kernel, which gives them again
    page by page, each cleared first: a third of a small run's processor time. Kept, the memory of the peak stays with
    the process. LONGHAUL_KEEP_MEMORY=0 turns this off; other C libraries than glibc, and accelerators, are left as they
    are. Errors: UserError where the variable is neither 0 nor 1.
    """
    wanted = os.environ.get("LONGHAUL_KEEP_MEMORY", "1")
    if wanted not in ("0", "1"):
        raise UserError(f"LONGHAUL_KEEP_MEMORY={wanted} is neither 0 nor 1; set it to one of them, or unset it")
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if wanted == "0" or not hasattr(libc, "gnu_get_libc_version"):
        return False
    # Only the main thread's arena can keep pieces larger than a heap, so the main thread runs the steps. Nothing is
    # lost: on a CPU a step that is queued waits for the same cores.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.default_backend() != "cpu":
        return False
    # The padding is room in the address space alone; it keeps the heaps of other threads from being given back too.
    options = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: LARGEST_HEAP}
    return all(libc.mallopt(option, value) for option, value in options.items())
