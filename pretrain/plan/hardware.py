"""Data-sheet figures of devices, and descriptions of absent GPUs for XLA.

Arithmetic rates are those of `pretrain.parallel.devices`, which MFU uses too.

Google, docs.cloud.google.com/tpu/docs, pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e", section "System
architecture": 32 GiB and 1,200 GB/s; 16 GB and 819 GB/s; 95 GB and 2,765 GB/s; 32 GB and 1,600 GB/s. Interconnect, both
directions together: 400 GB/s (v5e), 1,200 (v5p), 800 (v6e) over 4, 6 and 4 links, so 50, 100 and 100 GB/s per link and
direction; v4 has 6 links of 50 GB/s (Jouppi et al. 2023, "TPU v4: An Optically Reconfigurable Supercomputer", section
2). A v4 or v5p axis closes to a ring from 4 chips on, if it consists of whole cubes; a v5e or v6e axis with all 16.
NVIDIA, data sheets "H100 Tensor Core GPU" (SXM) and "H200 Tensor Core GPU" (SXM): 80 GB and 3.35 TB/s, 141 GB and 4.8
TB/s; NVLink 900 GB/s both directions together, so 450 GB/s each way among the 8 of a machine.
"""

import dataclasses

from jax.experimental import topologies

from pretrain.parallel.devices import PEAKS

GB = 1e9
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One kind of device. Rates are per device and second."""

    platform: str  # tpu, cuda or cpu
    family: str  # name in the vendor's compiler
    dims: int  # dimensions of a slice's shape
    memory: float | None = None  # bytes that a program may take; None: unknown
    flops: float | None = None  # bfloat16
    bandwidth: float | None = None  # bytes, of main memory
    link: float | None = None  # bytes, of one link each way
    most: int = 2**16  # most devices in one slice
    core: str = ""  # libtpu's name for cores fused into one device
    ring: int = 0  # chips at which a slice axis closes to a ring; 0: all-to-all links


# Memory available to a program: libtpu reserves some of a chip's (limits as it prints them), and JAX gives a program
# three quarters of a GPU's (XLA_PYTHON_CLIENT_MEM_FRACTION).
HARDWARE = {
    "v4": Hardware("tpu", "v4", 3, 30.75 * GIB, PEAKS["TPU v4"], 1200 * GB, 50 * GB, core="megacore", ring=4),
    "v5e": Hardware("tpu", "v5e", 2, 15.75 * GIB, PEAKS["TPU v5e"], 819 * GB, 50 * GB, ring=16),
    "v5p": Hardware("tpu", "v5p", 3, 95.74 * GIB, PEAKS["TPU v5p"], 2765 * GB, 100 * GB, core="megacore", ring=4),
    "v6e": Hardware("tpu", "v6e", 2, 31.25 * GIB, PEAKS["TPU v6e"], 1600 * GB, 100 * GB, ring=16),
    "h100": Hardware("cuda", "h100", 1, 0.75 * 80 * GB, PEAKS["NVIDIA H100"], 3350 * GB, 450 * GB, 8),
    "h200": Hardware("cuda", "h200", 1, 0.75 * 141 * GB, PEAKS["NVIDIA H200"], 4800 * GB, 450 * GB, 8),
    "cpu": Hardware("cpu", "cpu", 1),
}


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
TARGETS = {
    "h100": HOPPER.format(name="NVIDIA H100 80GB HBM3", memory=80 * 10**9, bandwidth=3350 * 10**9),
    "h200": HOPPER.format(name="NVIDIA H200", memory=141 * 10**9, bandwidth=4800 * 10**9),
}


def devices(family: str, count: int) -> list:
    """`count` absent GPUs of one machine."""
    described = topologies.get_topology_desc(
        platform="cuda", topology_name=family, target_config=TARGETS[family], topology=f"1x1x{count}"
    )
    return described.devices
