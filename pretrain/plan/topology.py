"""Hardware by name (v5p:4x4x4, h200:8, cpu:8) as devices to compile for.

None of it needs to be present: libtpu compiles for TPUs, JAX's CUDA plugin for described GPUs, and XLA's CPU backend
makes any number of devices.
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
COMPILERS = {  # by platform: packages, one of which is needed, and the extra that installs it
    "tpu": (("libtpu",), "plan"),
    "cuda": (("jax_cuda13_plugin", "jax_cuda12_plugin"), "cuda"),
    "cpu": (("jax",), ""),
}
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
        packages, extra = COMPILERS[self.hardware.platform]
        if not any(importlib.util.find_spec(package) for package in packages):
            raise UserError(f"--topology={self.name}: {packages[0]} is not installed. Run pip install -e '.[{extra}]'.")
        _leave_accelerators_alone(self)
        match self.hardware.platform:
            case "tpu":
                return _tpus(self)
            case "cuda":
                return hardware.devices(self.hardware.family, self.count)
        found = jax.devices("cpu")
        assert len(found) >= self.count, f"JAX was initialised with {len(found)} CPU devices"
        return found[: self.count]


def parse(name: str) -> Topology:
    """The topology of a name. Errors: UserError."""
    kind, _, sizes = name.partition(":")
    if kind not in HARDWARE:
        known = ", ".join(EXAMPLES.values())
        close = nearest(kind, HARDWARE)
        raise UserError(f"--topology={name}: unknown hardware{close} Examples: {known}.")
    hardware = HARDWARE[kind]
    shape = tuple(int(size) for size in sizes.split("x")) if SHAPE.fullmatch(sizes) else ()
    exists = hardware.platform != "tpu" or is_rented(kind, shape)
    if len(shape) != hardware.dims or math.prod(shape) > hardware.most or not exists:
        wanted = SLICES.get(hardware.dims, f"a number of devices, at most {hardware.most:,}")
        raise UserError(f"--topology={name}: not a shape of {kind}. Write {wanted}, as in {EXAMPLES[kind]}.")
    return Topology(name, hardware, shape)


# Slices that Google rents: pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e" of docs.cloud.google.com/tpu/docs.
FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))  # v5e and v6e
BELOW_A_CUBE = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
PART_OF_A_HOST = ((1, 1, 1), (2, 1, 1))  # v5p
CUBE = 4  # chips along an edge of the building block of larger slices, which are linked optically
MOST = {"v4": 64, "v5p": 96}  # cubes in a slice
SLICES = {  # by their number of dimensions
    2: "a slice that Google rents: 1x1, 2x2, 2x4 to 16x16",
    3: "a slice that Google rents: 2x2x1, 2x2x2, 2x2x4, 2x4x4 or rising multiples of 4",
}


def is_rented(kind: str, shape: tuple[int, ...]) -> bool:
    """Whether a slice of this shape is for rent; larger ones of v4 and v5p consist of cubes of 4x4x4 chips."""
    if shape in (*FLAT, *BELOW_A_CUBE) or (kind == "v5p" and shape in PART_OF_A_HOST):
        return True
    cubes = all(size % CUBE == 0 for size in shape) and list(shape) == sorted(shape)
    return kind in MOST and cubes and math.prod(shape) <= MOST[kind] * CUBE**3


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
