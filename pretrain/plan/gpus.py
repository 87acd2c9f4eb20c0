"""GPUs that are not there, for XLA to compile for: JAX's CUDA plugin, and a text that describes the device."""

import importlib.util

from jax.experimental import topologies

from pretrain.errors import UserError

PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
MISSING = "compiling for NVIDIA GPUs needs JAX's CUDA plugin, which is not installed; pip install -e '.[cuda]'"
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
# Of the CUDA documentation, "Compute Capabilities", 9.0, and the makers' data sheets (`pretrain.plan.hardware`).
TARGETS = {
    "h100": HOPPER.format(name="NVIDIA H100 80GB HBM3", memory=80 * 10**9, bandwidth=3350 * 10**9),
    "h200": HOPPER.format(name="NVIDIA H200", memory=141 * 10**9, bandwidth=4800 * 10**9),
}


def devices(name: str, family: str, count: int) -> list:
    """So many GPUs of one machine. Errors: UserError where the plugin is not installed."""
    if not any(importlib.util.find_spec(plugin) for plugin in PLUGINS):
        raise UserError(f"--topology={name}: {MISSING}")
    described = topologies.get_topology_desc(
        platform="cuda", topology_name=family, target_config=TARGETS[family], topology=f"1x1x{count}"
    )
    return described.devices
