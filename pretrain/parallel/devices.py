"""Devices: their names and published peak rates."""

import platform
import re
from collections.abc import Sequence
from pathlib import Path

from input_pipeline.processes import cores

# Dense bfloat16 FLOP/s of one JAX device (float16 where the hardware has no bfloat16), without structured
# sparsity, from the makers' data sheets. Sheets that print the sparse rate are halved. A TPU v2, v3 or 7x
# chip is two JAX devices, so theirs is half a chip. Keys are the beginnings of `device.device_kind`.
# NVIDIA: data sheets of V100, T4, A100, L4, L40S, H100 (SXM, PCIe, NVL), H200 (SXM, NVL), B200, GB200, and the
# Ada and Blackwell architecture papers. Google: the "System architecture" page of each Cloud TPU version.
PEAKS = {
    "NVIDIA GB200": 2500e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA H200 NVL": 835.5e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H100 NVL": 835.5e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "NVIDIA GeForce RTX 5090": 209.5e12,
    "NVIDIA GeForce RTX 4090": 165.2e12,
    "NVIDIA GeForce RTX 3090": 71e12,
    "Tesla V100": 125e12,
    "Tesla T4": 65e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
}


def peak_flops(device_kind: str, override: float) -> float | None:
    """The device's dense bfloat16 FLOP/s: `override` (config.log.peak_flops) if positive, else the table's entry.

    None for a device that is not in the table, and for a slice of one (NVIDIA's MIG), which has a part of its rate.
    """
    if override > 0:
        return override
    if " MIG " in device_kind:
        return None
    for kind in sorted(PEAKS, key=len, reverse=True):  # "TPU v5 lite" before "TPU v5"
        rest = device_kind.removeprefix(kind)
        if rest != device_kind and not rest[:1].isalnum():  # "NVIDIA L4" is not the beginning of "NVIDIA L40"
            return PEAKS[kind]
    return None


def describe_devices(devices: Sequence) -> str:
    """Number, kind and hosts of JAX devices: "8 x NVIDIA H100", "1 x cpu (AMD EPYC 7B13, 2 cores)"."""
    kind = devices[0].device_kind
    if devices[0].platform == "cpu":
        kind = f"cpu ({_processor()}, {cores()} cores)"
    hosts = len({device.process_index for device in devices})
    return f"{len(devices)} x {kind}" + (f" in {hosts} processes" if hosts > 1 else "")


def _processor() -> str:
    """The processor's name in Linux's /proc/cpuinfo, else what Python knows of it."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", info.read_text(), re.M) if info.exists() else []
    return re.sub(r" \d+-Core Processor$", "", names[0]) if names else platform.machine()
