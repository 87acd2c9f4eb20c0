"""What the program asks of the machine it starts on."""

import contextlib
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from absl import logging as absl_logging
from jax._src import distributed

from input_pipeline.remote import is_remote
from pretrain.distributed import arrivals, streams
from pretrain.distributed.heartbeat import Others
from pretrain.distributed.malloc import keep_freed_memory
from pretrain.distributed.shutdown import FAULT, leaving
from pretrain.errors import UserError

MOST = 1 << 20  # processes of a run, more than any has
JOINING = 300  # seconds that a process waits for the others to start


def start() -> None:
    """Joins the other processes of a run, if there are any, keeps freed memory, and settles what is compiled once.

    LONGHAUL_COORDINATOR=host:port, LONGHAUL_PROCESSES and LONGHAUL_PROCESS describe a run of several
    processes (`launch` sets them); LONGHAUL_COORDINATOR=auto lets JAX ask the cluster (TPU pods, SLURM).
    LONGHAUL_CACHE is the folder of compiled programs, by default ~/.cache/longhaul/compiled; empty turns it off.
    LONGHAUL_KEEP_MEMORY is explained in heap.py.
    Errors: UserError where these variables contradict one another or the machine.
    """
    quiet_background_threads()
    place = described()
    if place:
        join(*place)
    keep_freed_memory()  # before a device is used
    if place:
        _check_devices()
    keep_programs()


def keep_programs() -> None:
    """Lets JAX keep the programs that it compiles and find them again, unless they are for several CPU devices.

    XLA runs one collective of a CPU program after the other, in the same order on every device; a program that is read
    back from its serialised form has lost that order (jaxlib 0.10.2: each thunk gets a communicator resource of its
    own), and devices that wait in different collectives wait for ever.
    """
    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        jax.config.update("jax_enable_compilation_cache", False)  # the user's own JAX_COMPILATION_CACHE_DIR too
        return
    cache = os.environ.get("LONGHAUL_CACHE", os.path.expanduser("~/.cache/longhaul/compiled"))
    if cache and _is_writable(cache):
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _is_writable(cache: str) -> bool:
    """Whether programs can be kept there; where they cannot, the user is told, and each is compiled when it is used."""
    if is_remote(cache):
        return True
    try:
        os.makedirs(cache, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        say(
            f"compiled programs are not kept, since {cache} is no folder that can be written to ({error.strerror}); "
            "set LONGHAUL_CACHE to another, or to nothing"
        )
        return False
    return True


def say(message: str) -> None:
    """Tells the user, on standard error; of several processes that have met the first speaks for all."""
    if distributed.global_state.process_id == 0:  # which, unlike jax.process_index(), takes no device
        print(message, file=sys.stderr, flush=True)


def described() -> tuple[str, int | None, int | None] | None:
    """(coordinator, number of processes, which one this is) as the environment has it; None in a run of one process."""
    names = ("COORDINATOR", "PROCESSES", "PROCESS")
    values = {f"LONGHAUL_{name}": os.environ.get(f"LONGHAUL_{name}", "") for name in names}
    coordinator, *numbers = values.values()
    if not any(values.values()):
        return None
    if coordinator == "auto":
        return coordinator, None, None
    missing = [name for name, value in values.items() if not value]
    if missing:
        given = " and ".join(f"{name}={value}" for name, value in values.items() if value)
        raise UserError(
            f"{given} without {' and '.join(missing)} does not say how the processes of a run meet; "
            "set all three, or none of them for a run of one process"
        )
    host, _, port = coordinator.rpartition(":")
    if not _is_host(host) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UserError(
            f"LONGHAUL_COORDINATOR={coordinator} is no address of process 0; write host:port, such as 10.0.0.1:1234, "
            "or auto"
        )
    for name, value in list(values.items())[1:]:
        if not value.isdecimal() or int(value) >= MOST:
            raise UserError(f"{name}={value} is not a whole number from 0 to {MOST - 1}; set it to one")
    count, index = map(int, numbers)
    if not count:
        raise UserError("LONGHAUL_PROCESSES=0 is no run; set it to the number of its processes")
    if index >= count:
        raise UserError(
            f"LONGHAUL_PROCESS={index} is beyond the last of LONGHAUL_PROCESSES={count}, which is {count - 1}; "
            "count from 0"
        )
    return coordinator, count, index


def _is_host(name: str) -> bool:
    """Whether a name can be looked up: no part of it is empty or too long, as where a variable in it is not set."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def join(coordinator: str, count: int | None, index: int | None) -> None:
    """Returns when all processes have met; from then on they leave together (pretrain.distributed.heartbeat)."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if index == 0:
        _check_port(coordinator)
    if coordinator == "auto":
        with _in_time(lambda: arrivals.sentence(coordinator, None, None, JOINING)):
            try:
                jax.distributed.initialize(initialization_timeout=JOINING + 60)
            except ValueError as error:
                raise UserError(
                    f"LONGHAUL_COORDINATOR=auto, but JAX finds no cluster here ({str(error).splitlines()[0]}); write "
                    "the address of process 0 instead"
                ) from error
    else:
        with (
            arrivals.heard(coordinator, count, index) as came,
            _in_time(lambda: arrivals.sentence(coordinator, count, came(), JOINING)),
        ):
            jax.distributed.initialize(coordinator, count, index, initialization_timeout=JOINING + 60)
    streams.keep_output_apart()  # on CPUs Gloo greets there, before the JSON that a program reads
    leaving.retake()  # JAX listens for SIGTERM too, and hears nothing of Ctrl-C
    state = distributed.global_state
    leaving.others = Others(leaving, state.client, state.process_id, state.num_processes)


def _check_devices() -> None:
    """Raises UserError, in all processes, unless all have as many devices, as meshes and whoever adds up have it."""
    counts = Counter(device.process_index for device in jax.devices())
    for index, count in sorted(counts.items()):
        if count != counts[0]:
            raise UserError(
                f"process 0 has {counts[0]} devices and process {index} has {count}, and all must have as many; look "
                "for those that are missing, or give each process as many"
            )


@contextlib.contextmanager
def _in_time(sentence: Callable[[], str]) -> Iterator[None]:
    """Ends this process with a sentence where what is done takes more than JOINING seconds.

    What JAX does when the others do not come cannot be caught, so it is given a little more time than that.
    """
    alarm = threading.Timer(JOINING, lambda: leaving.leave(FAULT, sentence()))
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def age() -> float:
    """Seconds since this process was started, as Linux counts them; 0 elsewhere."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError):
        return 0.0


def _check_port(coordinator: str) -> None:
    """Raises UserError if process 0 cannot listen where the others will look for it."""
    port = int(coordinator.rpartition(":")[2])
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6).close()
    except OSError as error:
        raise UserError(
            f"LONGHAUL_COORDINATOR={coordinator}: port {port} of this machine cannot be opened ({error.strerror}), "
            "perhaps another run uses it; choose another port"
        ) from error


def without_device() -> str | None:
    """What to say where JAX finds no device of the platform that JAX_PLATFORMS names; None where it does."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # it asserts that there is one, of a plugin that is not there
        why = "".join(f" ({line})" for line in str(error).splitlines()[:1])
        return platforms and (
            f"JAX_PLATFORMS={platforms} names a platform that JAX finds no device of here{why}; install its driver and "
            "jaxlib's plugin, or unset the variable"
        )
    return None


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


@contextlib.contextmanager
def quiet():
    """In it Orbax tells nothing of what it reads: what matters is raised."""
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.FATAL)
    try:
        yield
    finally:
        absl_logging.set_verbosity(before)
