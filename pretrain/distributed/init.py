"""Start of a process: joins the run's other processes, and sets up JAX, memory and logging."""

import contextlib
import ctypes
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import jax
from absl import logging as absl_logging
from jax._src import distributed
from rich.console import Console

from input_pipeline.io import is_remote
from pretrain.distributed import heartbeat
from pretrain.distributed.shutdown import redirect_c_stdout, shutdown
from pretrain.errors import UserError

JOIN_TIMEOUT = 300  # seconds that a process waits for the others to start
SHUTDOWN_TIMEOUT = 60  # seconds that a finished process waits for the others to finish
# M_... of mallopt(3).
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
# Bytes of one heap of a thread's arena.
HEAP = 64 * 2**20


def start() -> None:
    """Joins the other processes, if any, keeps freed memory, and turns on the cache of compiled programs.

    LONGHAUL_COORDINATOR=host:port, LONGHAUL_PROCESSES and LONGHAUL_PROCESS, which `launch` sets, describe a run of
    several processes; LONGHAUL_COORDINATOR=auto lets JAX ask the cluster (TPU pods, SLURM). LONGHAUL_CACHE is the
    folder of compiled programs, by default ~/.cache/longhaul/compiled; empty turns it off.
    Errors: UserError for variables that contradict one another or the machine.
    """
    quiet_libraries()
    if cluster := read_cluster_environment():
        join(*cluster)
    keep_freed_memory()  # before a device is used
    # Meshes are built on as many devices in every process.
    devices = Counter(device.process_index for device in jax.devices())
    if warning := unused_gpus(jax.default_backend()):
        print_on_host0(warning)
    if len({*devices.values()}) > 1:
        raise UserError(f"processes have different numbers of devices: {dict(devices)}. Give all as many.")
    enable_compilation_cache()


def unused_gpus(backend: str, root: Path = Path("/")) -> str | None:
    """A warning if there are NVIDIA cards and JAX's `backend` is the CPU, though JAX_PLATFORMS does not ask for it."""
    if backend != "cpu" or os.environ.get("JAX_PLATFORMS"):
        return None
    # The driver lists its cards; a container may have the device files alone.
    cards = [*root.glob("proc/driver/nvidia/gpus/*")] or [*root.glob("dev/nvidia[0-9]*")]
    if not cards:
        return None
    return (
        f"warning: JAX runs on the CPU and uses none of {len(cards)} NVIDIA GPUs. Run pip install -e '.[cuda]', or set "
        "JAX_PLATFORMS=cpu."
    )


def enable_compilation_cache() -> None:
    """Lets JAX reuse compiled programs, unless they are for several CPU devices.

    XLA runs the collectives of a CPU program in the same order on every device. A program that is read back from its
    serialised form has lost that order (jaxlib 0.10.2), and devices in different collectives wait for each other.
    """
    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        jax.config.update("jax_enable_compilation_cache", False)  # the user's own JAX_COMPILATION_CACHE_DIR too
        return
    cache = os.environ.get("LONGHAUL_CACHE", os.path.expanduser("~/.cache/longhaul/compiled"))
    if not cache:
        return
    try:
        if not is_remote(cache):
            os.makedirs(cache, exist_ok=True)
            tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        print_on_host0(f"warning: LONGHAUL_CACHE={cache} cannot be written ({error.strerror}): programs are not kept")
        return
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def print_on_host0(message: str) -> None:
    """Prints on standard error, in process 0 only; warnings in red on a terminal."""
    if distributed.global_state.process_id != 0:  # unlike jax.process_index(), this initialises no device
        return
    if message.startswith("warning:") and sys.stderr.isatty():
        Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    else:
        print(message, file=sys.stderr, flush=True)


def read_cluster_environment() -> tuple[str, int | None, int | None] | None:
    """(coordinator, number of processes, index of this one) from the environment; None for a single process."""
    names = [f"LONGHAUL_{name}" for name in ("COORDINATOR", "PROCESSES", "PROCESS")]
    coordinator, count, index = values = [os.environ.get(name, "") for name in names]
    if not any(values):
        return None
    if coordinator == "auto":
        return coordinator, None, None
    if not re.fullmatch(r"\S+:\d+ \d+ \d+", " ".join(values)) or int(index) >= int(count):
        given = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        raise UserError(f"{given}: not host:port, number of processes, index. Set all three.")
    return coordinator, int(count), int(index)


def join(coordinator: str, count: int | None, index: int | None) -> None:
    """Waits for all processes of the run; from then on the death of one ends the others."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Its handler of SIGTERM comes with `shutdown.hold`: before there is something to save a signal exits at once.
    jax.config.update("jax_enable_preemption_service", False)
    heartbeat.exit_when_peers_die()
    place = {} if coordinator == "auto" else {"coordinator_address": coordinator}
    try:
        jax.distributed.initialize(
            **place,
            num_processes=count,
            process_id=index,
            initialization_timeout=JOIN_TIMEOUT,
            heartbeat_timeout_seconds=heartbeat.TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except ValueError as error:
        raise UserError("LONGHAUL_COORDINATOR=auto: JAX finds no cluster here. Give host:port of process 0.") from error
    # Gloo prints there, before the JSON that a program reads.
    redirect_c_stdout()
    # JAX has replaced the handlers.
    shutdown.install_handlers()
    shutdown.peers = True
    shutdown.hosts_service = distributed.global_state.process_id == 0


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory if steps run on a CPU; returns whether it does. Call it before a device is used.

    glibc returns a step's large buffers to the kernel, which clears every page that it hands out again: a third of a
    small run's processor time. LONGHAUL_KEEP_MEMORY=0 turns this off.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if os.environ.get("LONGHAUL_KEEP_MEMORY") == "0" or not hasattr(libc, "gnu_get_libc_version"):
        return False
    # Only the main thread's arena keeps pieces larger than a heap, so the main thread runs the steps. On a CPU a queued
    # step waits for the same cores anyway.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.default_backend() != "cpu":
        return False
    # The padding is address space only; it keeps the heaps of other threads from being returned too.
    options = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: HEAP}
    return all(libc.mallopt(option, value) for option, value in options.items())


def process_age() -> float:
    """Seconds since this process was started, from Linux's /proc; 0 elsewhere."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError):
        return 0.0


def quiet_libraries() -> None:
    """Silences the logs of Orbax's threads: their errors reach the main thread."""
    absl_logging.set_verbosity(absl_logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


@contextlib.contextmanager
def quiet():
    """Silences Orbax's log within the block."""
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.FATAL)
    try:
        yield
    finally:
        absl_logging.set_verbosity(before)
