"""Hardware by name (v5p:4x4x4, h200:8, cpu:8) as devices to compile for.

None of it needs to be present: libtpu compiles for TPUs, JAX's CUDA plugin for described GPUs, and XLA's CPU backend
makes any number of devices.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import math
import os
import re

import jax
from jax.experimental import topologies

from pretrain.errors import UserError, nearest
from pretrain.plan import hardware
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
HOST = 4  # chips per TPU host, libtpu's default
LIBTPU = "libtpu is not installed. Run pip install -e '.[plan]'."
OF_GCLOUD = re.compile(r"(v4|v5litepod|v5e|v5p|v6e)-(\d{1,6})")
SHAPE = re.compile(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*")


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices of one kind and the shape in which they are connected."""

    name: str
    hardware: Hardware
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def devices(self) -> list:
        """The devices to compile for. Errors: UserError where their compiler is missing or knows no such shape.

        From here on this process uses CPUs only; its own accelerators stay free.
        """
        _leave_accelerators_alone(self)
        match self.hardware.platform:
            case "tpu":
                return _tpus(self)
            case "cuda":
                return hardware.devices(self.name, self.hardware.family, self.count)
        return _cpus(self)


def parse(name: str) -> Topology:
    """The topology of a name. Errors: UserError."""
    kind, _, sizes = name.partition(":")
    if by_cores := OF_GCLOUD.fullmatch(name):
        raise UserError(_of_gcloud(name, *by_cores.groups()))
    if kind not in HARDWARE:
        known = ", ".join(EXAMPLES.values())
        close = nearest(kind, HARDWARE)
        raise UserError(f"--topology={name}: unknown hardware{close} Examples: {known}.")
    hardware = HARDWARE[kind]
    shape = tuple(int(size) for size in sizes.split("x")) if SHAPE.fullmatch(sizes) else ()
    if len(shape) != hardware.dims or math.prod(shape) > hardware.most:
        wanted = {1: f"a number of devices, at most {hardware.most:,}", 2: "two sizes", 3: "three sizes"}[hardware.dims]
        raise UserError(
            f"--topology={name}: not a shape of {kind}. Write {wanted} after the colon, as in {EXAMPLES[kind]}."
        )
    if hardware.platform == "tpu":
        check_slice(kind, shape)
    return Topology(name, hardware, shape)


def _of_gcloud(name: str, kind: str, number: str) -> str:
    """Message about a gcloud name, which counts TensorCores for v4 and v5p: two per chip."""
    kind = kind.replace("v5litepod", "v5e")
    hardware = HARDWARE[kind]
    chips = int(number) // 2 if hardware.core else int(number)
    shape = _shape(chips, hardware.dims)
    example = f"{kind}:{format_shape(shape)}" if launchers(kind, shape) else EXAMPLES[kind]
    return f"--topology={name}: gcloud's name of a slice. Write its shape in chips, such as --topology={example}."


def _shape(count: int, dims: int) -> tuple[int, ...]:
    """The most cubic shape of `count` chips, a power of two; () otherwise."""
    if count < 1 or count & (count - 1):
        return ()
    # Distribute the factors of two over the dimensions as evenly as possible.
    each, more = divmod(count.bit_length() - 1, dims)
    sizes = [2 ** (each + (place >= dims - more)) for place in range(dims)]
    return tuple(sorted(sizes, key=lambda size: (size == 1, size)))


def _leave_accelerators_alone(topology: Topology) -> None:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no TPU whose metadata could be queried
    # Any type that libtpu knows avoids a host lookup and a warning; the requested topology is used all the same.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no TPU to lock
    jax.config.update("jax_platforms", "cpu")
    if topology.hardware.platform == "cpu":
        with contextlib.suppress(RuntimeError):  # JAX is already initialised
            jax.config.update("jax_num_cpu_devices", topology.count)


def _tpus(topology: Topology) -> list:
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology={topology.name}: {LIBTPU}")
    options = {"chip_config_name": topology.hardware.core} if topology.hardware.core else {}
    # libtpu assumes whole hosts of 4 chips; a smaller slice needs its bounds spelled out.
    if topology.count < HOST:
        options["chips_per_host_bounds"] = (*topology.shape, 1)[:3]
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options).devices
    except (jax.errors.JaxRuntimeError, RuntimeError, NotImplementedError) as error:
        said = str(error).splitlines()[0]
        raise UserError(
            f"--topology={topology.name}: libtpu does not know this shape ({said}). "
            f"Try {EXAMPLES[topology.hardware.family]}."
        ) from error


def _cpus(topology: Topology) -> list:
    found = jax.devices("cpu")
    if len(found) < topology.count:
        raise UserError(
            f"--topology={topology.name}: this process has {len(found)} devices. "
            f"Set XLA_FLAGS=--xla_force_host_platform_device_count={topology.count}."
        )
    return found[: topology.count]


# Slices that Google rents, which `launch.tpu_pod --create` and `launch.gke --tpu` accept. Sources: pages "TPU v4", "TPU
# v5e", "TPU v5p" and "TPU v6e" of docs.cloud.google.com/tpu/docs, and "Plan TPUs in GKE".

Shape = tuple[int, ...]
FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))  # of v5e and v6e
BELOW_A_CUBE = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
PART_OF_A_HOST = {"v5p": ((1, 1, 1), (2, 1, 1))}  # GKE only
CUBE = 4  # chips along an edge of the building block
MOST = {"v4": 64, "v5p": 96}  # cubes in a slice
LARGEST = {"v4": (16, 16, 16), "v5p": (16, 16, 24)}  # on GKE
EVERYWHERE = ("tpu_pod", "gke")


def launchers(kind: str, shape: Shape) -> tuple[str, ...]:
    """Launchers that can create a slice, simplest first; () if it is not rented."""
    if shape in (*FLAT, *BELOW_A_CUBE):
        return EVERYWHERE
    if shape in PART_OF_A_HOST.get(kind, ()):
        return ("gke",)
    if kind not in LARGEST or list(shape) != sorted(shape) or any(size % CUBE for size in shape):
        return ()
    # Larger slices consist of optically linked cubes of 4x4x4 chips.
    cubes = tuple(size // CUBE for size in shape)
    few = math.prod(cubes) <= MOST[kind]
    # gcloud takes a number of v5p chips and makes the most compact slice of them.
    made = few and (kind == "v4" or cubes == _most_compact(math.prod(cubes)))
    small = all(size <= most for size, most in zip(shape, LARGEST[kind], strict=True))
    return tuple(name for name, takes in zip(EVERYWHERE, (made, small), strict=True) if takes)


def check_slice(kind: str, shape: Shape) -> None:
    """Raises UserError for a slice that is not rented."""
    if launchers(kind, shape):
        return
    turned = [other for other in itertools.permutations(shape) if launchers(kind, other)]
    known = FLAT if len(shape) == 2 else (*PART_OF_A_HOST.get(kind, ()), *BELOW_A_CUBE)
    more = ", and those of three multiples of 4 in rising order" if kind in LARGEST else ""
    remedy = (
        f"Did you mean {kind}:{format_shape(turned[0])}?"
        if turned
        else f"Slices of {kind}: {', '.join(map(format_shape, known))}{more}."
    )
    raise UserError(f"--topology={kind}:{format_shape(shape)}: not a slice that Google rents. {remedy}")


def format_shape(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _most_compact(count: int) -> Shape:
    """`count` cubes in the shape with the shortest longest edge, then the next; edges ascending."""
    # Ascending edges, so that (1, 2, 4) and its permutations are one shape.
    shapes = itertools.combinations_with_replacement(range(1, count + 1), 3)
    return min((shape for shape in shapes if math.prod(shape) == count), key=lambda shape: shape[::-1])
