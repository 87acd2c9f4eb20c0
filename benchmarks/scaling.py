"""Costs of more devices and of checkpoints on one machine.

    python -m benchmarks.scaling [--quick] [--format=json]

Weak scaling: a step over 2, 4 and 8 virtual devices, which share the machine's cores, against a step of as many rows on
one device: the cost of partitioning. Checkpoints: saving until complete, and checking and restoring, against writing
and reading as many bytes. Resharding: peak memory of each of four processes that restore an array into another
sharding, against the bytes of its own shards.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import report, steps
from pretrain import config as configs
from pretrain.checkpoints import restore
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.distributed.init import keep_freed_memory, quiet_libraries, start
from pretrain.distributed.shutdown import shutdown
from pretrain.step.train_spec import TrainSpec

CONFIG = "configs/quickstart.py:tiny"
OVERRIDES = [("tokenizer.kind", "bytes"), ("optimizer.name", "adamw"), ("train.compare_every", "0")]
PROCESSES, DEVICES = 4, 2  # that restore, and devices of each
ROWS = 8  # per device
MIB = 1 << 20
# Shardings over a mesh [2, 4] into which an array, saved as rows over eight devices, is restored.
SHARDINGS = {
    "as it was": (("a", "b"), None),
    "rows over 4": ("b", None),
    "columns over 8": (None, ("a", "b")),
    "rows over 2, columns over 4": ("a", "b"),
}


def weak_scaling(counts: Sequence[int], rounds: int, updates: int) -> list[report.Result]:
    """A step over several devices against the same step on one."""
    seconds = report.interleave({"one": build_step(1, ROWS, updates)}, rounds)["one"]
    results = [report.Result(f"step of {ROWS} rows on one device", statistics.median(seconds) / updates * 1e3, "ms")]
    for devices in counts:
        runs = {"one": build_step(1, devices * ROWS, updates), "all": build_step(devices, devices * ROWS, updates)}
        times = report.interleave(runs, rounds)
        name, value = f"step of {ROWS} rows a device over {devices}", statistics.median(times["all"]) / updates * 1e3
        # Inverted: how many times as long, not as fast.
        pair = times["one"], times["all"]
        results.append(report.compare(name, *pair, "as many rows on one device", unit="ms", value=value, target=1.1))
    return results


def build_step(devices: int, rows: int, updates: int):
    """Function that makes some updates on one batch of random ids."""
    config = configs.load(CONFIG, [*OVERRIDES, ("train.batch_size", str(rows)), ("mesh.data", str(devices))])
    spec = TrainSpec.build(config, jax.devices()[:devices])
    step = steps.updates(spec, steps.random_batch(spec, rows, config.data.length), rows)
    return lambda: step(updates)


def checkpoints(folder: Path, megabytes: int, rounds: int) -> list[report.Result]:
    """Saving and restoring against writing and reading as many bytes."""
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    # Random numbers, which do not compress.
    values = np.random.default_rng(0).standard_normal((megabytes * MIB // 4096, 1024), np.float32)
    state = {"params": {"w": jax.device_put(values, rows)}}
    target = {"params": {"w": jax.ShapeDtypeStruct(values.shape, np.float32, sharding=rows)}}
    manager = CheckpointManager(str(folder / "run"), configs.load(CONFIG, []).checkpoint)
    raw, step = folder / "raw", iter(range(1, 1 << 20))

    def save() -> None:
        manager.save(next(step), state, 0)
        manager.wait()

    def write() -> None:
        with open(raw, "wb") as file:
            file.write(values.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def load() -> None:
        newest = manager.workdir.checkpoint(manager.steps()[-1])
        assert not restore.find_damage(newest)
        jax.block_until_ready(restore.read_state(newest, target))

    results = []
    for name, ours, theirs, against in (
        ("save", save, write, "writing and fsync of as many bytes"),
        ("checksums and restore", load, raw.read_bytes, "reading as many bytes"),
    ):
        times = report.interleave({"ours": ours, "theirs": theirs}, rounds)
        value = megabytes / statistics.median(times["ours"])
        pair = times["ours"], times["theirs"]
        results.append(report.compare(f"{name} of {megabytes} MiB", *pair, against, unit="MiB/s", value=value))
    manager.close()
    return results


def resharding(folder: Path, megabytes: int) -> list[report.Result]:
    """Peak memory of processes that restore, against the bytes of their shards."""
    os.environ["LONGHAUL_KEEP_MEMORY"] = "0"
    command = [sys.executable, "-m", "benchmarks.scaling", f"--restore={folder}", f"--megabytes={megabytes}"]
    # Started by another process, since a fork of a process that has started JAX's threads may deadlock.
    call = f"launch({command}, {PROCESSES}, {DEVICES}, Path({str(folder / 'logs')!r}), 30.0)"
    source = f"import sys; from pathlib import Path; from launch.local import launch; sys.exit({call})"
    subprocess.run([sys.executable, "-c", source], check=True)
    measured = [json.loads((folder / f"{index}.json").read_text()) for index in range(PROCESSES)]
    results = []
    for name in SHARDINGS:
        peaks, shards = zip(*(one[name] for one in measured), strict=True)
        ratios = [peak / shard for peak, shard in zip(peaks, shards, strict=True)]
        unit, against = "MiB at most, of a process", f"the {statistics.median(shards):.0f} MiB that it holds"
        ratio, spread = statistics.median(ratios), (min(ratios), max(ratios))
        value = statistics.median(peaks)
        results.append(report.Result(f"restoring {megabytes} MiB, {name}", value, unit, against, ratio, 2.0, spread))
    return results


def restore_in_process(folder: Path, megabytes: int) -> None:
    """As one of several processes, restore an array into each sharding; write {sharding: (peak, shards) in MiB}."""
    start()
    devices = np.array(jax.devices())
    rows, mesh = NamedSharding(Mesh(devices, ("x",)), PartitionSpec("x")), Mesh(devices.reshape(2, 4), ("a", "b"))
    shape = (megabytes * MIB // 4096, 1024)

    def shard(index) -> np.ndarray:
        first, last, _ = index[0].indices(shape[0])
        return np.random.default_rng(first).standard_normal((last - first, shape[1]), np.float32)

    manager = CheckpointManager(f"{folder}/resharded", configs.load(CONFIG, []).checkpoint)
    manager.save(1, {"params": {"w": jax.make_array_from_callback(shape, rows, shard)}}, 0)
    manager.wait()
    measured = {}
    for name, spec in SHARDINGS.items():
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        target = {"params": {"w": jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)}}
        ctypes.CDLL(None).malloc_trim(0)  # return freed memory, so that it does not count
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = process_memory("VmRSS")
        array = restore.read_state(manager.workdir.checkpoint(1), target)["params"]["w"]
        jax.block_until_ready(array)
        measured[name] = process_memory("VmHWM") - before, sum(s.data.nbytes for s in array.addressable_shards) / MIB
        del array
    manager.close()
    (folder / f"{jax.process_index()}.json").write_text(json.dumps(measured))
    shutdown.end(0)  # ends all processes together


def process_memory(field: str) -> float:
    """MiB of this process, from Linux's /proc."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--restore", type=Path, help=argparse.SUPPRESS)  # of one of several processes
    parser.add_argument("--megabytes", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.restore:
        restore_in_process(args.restore, args.megabytes)
    quiet_libraries()
    keep_freed_memory()
    rounds, updates, megabytes, counts = (5, 2, 32, (8,)) if args.quick else (9, 10, 512, (2, 4, 8))
    with tempfile.TemporaryDirectory(prefix="longhaul-") as folder:
        results = weak_scaling(counts, rounds, updates)
        results += checkpoints(Path(folder, "checkpoints"), megabytes, rounds)
        results += resharding(Path(folder), megabytes)
    report.show(results, args, [CONFIG, ROWS, rounds, updates, megabytes])


if __name__ == "__main__":
    main()
