"""What the program asks of the machine it starts on."""

import logging
import os
import sys

import jax
from absl import logging as absl_logging

from pretrain.heap import keep_freed_memory


def start() -> None:
    """Joins the other processes of a run, if there are any, turns the compilation cache on, and keeps freed memory.

    LONGHAUL_COORDINATOR=host:port, LONGHAUL_PROCESSES and LONGHAUL_PROCESS describe a run of several
    processes (`launch` sets them); LONGHAUL_COORDINATOR=auto lets JAX ask the cluster (TPU pods, SLURM).
    LONGHAUL_CACHE is the folder of compiled programs, by default ~/.cache/longhaul; empty turns it off.
    LONGHAUL_KEEP_MEMORY is explained in heap.py.
    """
    quiet_background_threads()
    cache = os.environ.get("LONGHAUL_CACHE", os.path.expanduser("~/.cache/longhaul/compiled"))
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    coordinator = os.environ.get("LONGHAUL_COORDINATOR")
    if coordinator:
        join(coordinator)
    keep_freed_memory()


def join(coordinator: str) -> None:
    """Meets the other processes at `coordinator`."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if coordinator == "auto":
        jax.distributed.initialize()
    else:
        count, index = (int(os.environ[f"LONGHAUL_{name}"]) for name in ("PROCESSES", "PROCESS"))
        jax.distributed.initialize(coordinator, count, index)


def quiet_background_threads() -> None:
    """Keeps the tracebacks of Orbax's threads off the screen: what they fail with reaches us, and is reported, once.

    After a failed save, further writes fail with nobody waiting for them, and callbacks of the write that was given up
    find their event loop closed; they say nothing new.
    """
    absl_logging.set_verbosity(absl_logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    default = sys.unraisablehook

    def hook(failure):
        if not (isinstance(failure.exc_value, RuntimeError) and "Event loop is closed" in str(failure.exc_value)):
            default(failure)

    sys.unraisablehook = hook
