"""Hardware by name (v5p:4x4x4, h200:8, cpu:8) as devices to compile for.

None of it needs to be present: libtpu compiles for TPUs, JAX's CUDA plugin for described GPUs, and XLA's CPU backend
makes any number of devices. Arithmetic rates are those of `pretrain.parallel.devices`, which MFU uses too. Sources:

Google, docs.cloud.google.com/tpu/docs, pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e", section "System
architecture": 32 GiB and 1,200 GB/s; 16 GB and 819 GB/s; 95 GB and 2,765 GB/s; 32 GB and 1,600 GB/s. Interconnect, both
directions together: 400 GB/s (v5e), 1,200 (v5p), 800 (v6e) over 4, 6 and 4 links, so 50, 100 and 100 GB/s per link and
direction; v4 has 6 links of 50 GB/s (Jouppi et al. 2023, "TPU v4: An Optically Reconfigurable Supercomputer", section
2). A v4 or v5p axis closes to a ring from 4 chips on, if it consists of whole cubes; a v5e or v6e axis with all 16.
NVIDIA, data sheets "H100 Tensor Core GPU" (SXM) and "H200 Tensor Core GPU" (SXM): 80 GB and 3.35 TB/s, 141 GB and 4.8
TB/s; NVLink 900 GB/s both directions together, so 450 GB/s each way among the 8 of a machine.
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
from pretrain.parallel.devices import PEAKS

GB = 1e9
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One kind of device. Rates are per device and second."""

    platform: str  # tpu, cuda or cpu
    family: str  # name in the vendor's compiler
    example: str  # a shape, in as many dimensions as all of this kind
    memory: float | None = None  # bytes that a program may take; None: unknown
    flops: float | None = None  # bfloat16
    bandwidth: float | None = None  # bytes, of main memory
    link: float | None = None  # bytes, of one link each way
    most: int = 2**16  # most devices in one slice
    core: str = ""  # libtpu's name for cores fused into one device
    ring: int = 0  # chips at which a slice axis closes to a ring; 0: all-to-all links

    @property
    def dims(self) -> int:
        return 1 + self.example.count("x")


# Memory available to a program: libtpu reserves some of a chip's (limits as it prints them), and JAX gives a program
# three quarters of a GPU's (XLA_PYTHON_CLIENT_MEM_FRACTION).
HARDWARE = {
    "v4": Hardware("tpu", "v4", "4x4x8", 30.75 * GIB, PEAKS["TPU v4"], 1200 * GB, 50 * GB, core="megacore", ring=4),
    "v5e": Hardware("tpu", "v5e", "8x8", 15.75 * GIB, PEAKS["TPU v5e"], 819 * GB, 50 * GB, ring=16),
    "v5p": Hardware("tpu", "v5p", "4x4x4", 95.74 * GIB, PEAKS["TPU v5p"], 2765 * GB, 100 * GB, core="megacore", ring=4),
    "v6e": Hardware("tpu", "v6e", "4x4", 31.25 * GIB, PEAKS["TPU v6e"], 1600 * GB, 100 * GB, ring=16),
    "h100": Hardware("cuda", "h100", "8", 0.75 * 80 * GB, PEAKS["NVIDIA H100"], 3350 * GB, 450 * GB, 8),
    "h200": Hardware("cuda", "h200", "8", 0.75 * 141 * GB, PEAKS["NVIDIA H200"], 4800 * GB, 450 * GB, 8),
    "cpu": Hardware("cpu", "cpu", "8"),
}
HOST = 4  # chips per TPU host, libtpu's default
COMPILERS = {  # by platform: packages, one of which is needed, and the extra that installs it
    "tpu": (("libtpu",), "plan"),
    "cuda": (("jax_cuda13_plugin", "jax_cuda12_plugin"), "cuda"),
    "cpu": (("jax",), ""),
}
SHAPE = re.compile(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*")

HOPPER = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 l2_cache_size: 52428800
  device_memory_size: {memory} memory_bandwidth: {bandwidth}
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 9 }}
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""
# CUDA documentation, "Compute Capabilities", 9.0, and NVIDIA's data sheets.
DESCRIPTIONS = {
    "h100": HOPPER.format(name="NVIDIA H100 80GB HBM3", memory=80 * 10**9, bandwidth=3350 * 10**9),
    "h200": HOPPER.format(name="NVIDIA H200", memory=141 * 10**9, bandwidth=4800 * 10**9),
}


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
            raise UserError(f"--topology={self.name}: needs {packages[0]}. Run pip install -e '.[{extra}]'.")
        _leave_accelerators_alone(self)
        match self.hardware.platform:
            case "tpu":
                return _tpus(self)
            case "cuda":
                family, shape = self.hardware.family, f"1x1x{self.count}"
                options = {"topology_name": family, "target_config": DESCRIPTIONS[family], "topology": shape}
                return topologies.get_topology_desc(platform="cuda", **options).devices
        found = jax.devices("cpu")
        assert len(found) >= self.count, f"JAX was initialised with {len(found)} CPU devices"
        return found[: self.count]


def parse(name: str) -> Topology:
    """The topology of a name. Errors: UserError."""
    kind, _, sizes = name.partition(":")
    if kind not in HARDWARE:
        known = ", ".join(f"{name}:{one.example}" for name, one in HARDWARE.items())
        close = nearest(kind, HARDWARE)
        raise UserError(f"--topology={name}: unknown hardware{close} Examples: {known}.")
    hardware = HARDWARE[kind]
    shape = tuple(int(size) for size in sizes.split("x")) if SHAPE.fullmatch(sizes) else ()
    exists = hardware.platform != "tpu" or is_rented(kind, shape)
    if len(shape) != hardware.dims or math.prod(shape) > hardware.most or not exists:
        wanted = SLICES.get(hardware.dims, f"a number of devices, at most {hardware.most:,}")
        raise UserError(f"--topology={name}: not a shape of {kind}. Write {wanted}, such as {kind}:{hardware.example}.")
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
            f"--topology={topology.name}: unknown to libtpu ({said}). "
            f"Try {topology.hardware.family}:{topology.hardware.example}."
        ) from error
