"""Hardware by name, such as v5p:4x4x4, h200:8 or cpu:8, as devices that programs can be compiled for.

None of it need be there: libtpu compiles for TPUs, JAX's CUDA plugin for GPUs that a text describes, and XLA's CPU
backend makes as many devices as are asked for.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from pretrain.errors import UserError, nearest
from pretrain.plan import hardware, launch_commands
from pretrain.plan.hardware import HARDWARE, Hardware

EXAMPLES = {
    "v4": "v4:4x4x8",
    "v5e": "v5e:8x8",
    "v5p": "v5p:4x4x4",
    "v6e": "v6e:4x4",
    "h100": "h100:8",
    "h200": "h200:8",
    "cpu": "cpu:8",
}
HOST = 4  # chips of a host of TPUs, as libtpu takes it unless it is told
LIBTPU = "compiling for TPUs needs libtpu, which is not installed; pip install -e '.[plan]'"
OF_GCLOUD = re.compile(r"(v4|v5litepod|v5e|v5p|v6e)-(\d{1,6})")
SHAPE = re.compile(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*")


@dataclasses.dataclass(frozen=True)
class Topology:
    """So many devices of one kind, in the shape in which they are joined."""

    name: str
    hardware: Hardware
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def devices(self) -> list:
        """The devices, to compile for. Errors: UserError where their compiler is missing, or knows no such shape.

        Accelerators of this machine are left alone; nothing but CPUs is used from here on.
        """
        _leave_accelerators_alone(self)
        match self.hardware.platform:
            case "tpu":
                return _tpus(self)
            case "cuda":
                return hardware.devices(self.name, self.hardware.family, self.count)
        return _cpus(self)


def parse(name: str) -> Topology:
    """The topology of a name. Errors: UserError that lists the names that there are."""
    kind, _, sizes = name.partition(":")
    if by_cores := OF_GCLOUD.fullmatch(name):
        raise UserError(_of_gcloud(name, *by_cores.groups()))
    if kind not in HARDWARE:
        known = ", ".join(EXAMPLES.values())
        close = nearest(kind, HARDWARE).partition(";")[0]
        raise UserError(f"--topology={name} is of no hardware that is known; choose one like {known}{close}")
    hardware = HARDWARE[kind]
    shape = tuple(int(size) for size in sizes.split("x")) if SHAPE.fullmatch(sizes) else ()
    if len(shape) != hardware.dims or math.prod(shape) > hardware.most:
        wanted = {1: f"a number of devices, at most {hardware.most:,}", 2: "two sizes", 3: "three sizes"}[hardware.dims]
        raise UserError(
            f"--topology={name} is no shape of {kind}; after the colon write {wanted}, as in {EXAMPLES[kind]}"
        )
    if hardware.platform == "tpu":
        launch_commands.check(kind, shape)
    return Topology(name, hardware, shape)


def _of_gcloud(name: str, kind: str, number: str) -> str:
    """The sentence for a name as Google's cloud has it: of v4 and v5p it counts TensorCores, two a chip."""
    kind = kind.replace("v5litepod", "v5e")
    hardware = HARDWARE[kind]
    chips = int(number) // 2 if hardware.core else int(number)
    shape = _shape(chips, hardware.dims)
    example = f"{kind}:{launch_commands.joined(shape)}" if launch_commands.launchers(kind, shape) else EXAMPLES[kind]
    return (
        f"--topology={name} is the cloud's name of a slice; write its shape in chips after a colon, "
        f"such as --topology={example}"
    )


def _shape(count: int, dims: int) -> tuple[int, ...]:
    """The shape nearest to a cube of so many chips, a power of two; () of any other number."""
    if count < 1 or count & (count - 1):
        return ()
    each, more = divmod(count.bit_length() - 1, dims)
    sizes = [2 ** (each + (place >= dims - more)) for place in range(dims)]
    return tuple(sorted(sizes, key=lambda size: (size == 1, size)))


def _leave_accelerators_alone(topology: Topology) -> None:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no TPU to be asked about itself
    # Any that libtpu knows: it looks up the hosts of one that it is told of, says so on standard error of one that it
    # does not know, and takes the topology that is asked for all the same.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # nor one to be kept from others
    jax.config.update("jax_platforms", "cpu")
    if topology.hardware.platform == "cpu":
        with contextlib.suppress(RuntimeError):  # JAX has begun: it has the devices that it began with
            jax.config.update("jax_num_cpu_devices", topology.count)


def _tpus(topology: Topology) -> list:
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology={topology.name}: {LIBTPU}")
    told = {"chip_config_name": topology.hardware.core} if topology.hardware.core else {}
    if topology.count < HOST:
        told["chips_per_host_bounds"] = (*topology.shape, 1)[:3]
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **told).devices
    except (jax.errors.JaxRuntimeError, RuntimeError, NotImplementedError) as error:
        said = str(error).splitlines()[0]
        raise UserError(
            f"--topology={topology.name} is a shape that libtpu does not know ({said}); give another, "
            f"such as {EXAMPLES[topology.hardware.family]}"
        ) from error


def _cpus(topology: Topology) -> list:
    found = jax.devices("cpu")
    if len(found) < topology.count:
        raise UserError(
            f"--topology={topology.name} needs {topology.count} devices and this process has begun with {len(found)}; "
            f"set XLA_FLAGS=--xla_force_host_platform_device_count={topology.count}, or plan in a process of its own"
        )
    return found[: topology.count]
