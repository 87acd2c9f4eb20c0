"""What more devices, more processes and checkpoints cost, on one machine.

    python -m benchmarks.scaling [--quick] [--format=json]

Weak scaling: rows of a batch grow with the devices, 1, 2, 4, 8 virtual ones of this machine, which share its cores. So
a step over N of them is compared with a step of as many rows on one: what splitting it costs. The loop's own Python:
one turn of it around a step that does nothing, in one process and in each of four, in processor time, since four share
the cores. Checkpoints: seconds until one is whole on the disk, its record made, and until it is restored, against
writing and reading as many bytes by themselves. Resharding: the most memory that one of four processes takes while it
restores an array into another sharding than it was saved in, against the bytes that its own devices hold of it.
"""

import contextlib
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import loop, report, several
from pretrain import config as configs
from pretrain.checkpoints import restore
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.distributed.init import keep_freed_memory, quiet_libraries, start
from pretrain.step.train_spec import TrainSpec
from pretrain.training.startup import build_run

CONFIG = "configs/quickstart.py:tiny"
PROCESSES, EACH = 4, 2  # other processes, and virtual devices of each
ROWS = 8  # of a device
TURNS = 300  # of the loop
MIB = 1 << 20
TEXT = str(Path(__file__).resolve().parent / "*.py")
OVERRIDES = [("tokenizer.kind", "bytes"), ("data.train", f"text:{TEXT}"), ("optimizer.name", "adamw")]
OVERRIDES += [("log.tensorboard", "false"), ("train.compare_every", "0")]
# How an array that was saved as rows over eight devices is restored: what is divided over a mesh [2, 4].
RESHARDED = {
    "as it was": (("a", "b"), None),
    "rows over 4": ("b", None),
    "columns over 8": (None, ("a", "b")),
    "rows over 2, columns over 4": ("a", "b"),
}


def weak(over: Sequence[int], rounds: int, updates: int) -> list[report.Result]:
    """A step over N devices against the same step on one."""
    alone = report.interleaved({"one": stepping(1, ROWS, updates)}, rounds)["one"]
    value = statistics.median(alone) / updates * 1e3
    results = [report.Result(f"step of {ROWS} rows on one device", value, "ms", spread=None)]
    for devices in over:
        runs = {"one": stepping(1, devices * ROWS, updates), "all": stepping(devices, devices * ROWS, updates)}
        times = report.interleaved(runs, rounds)
        middle, spread = report.ratio(times["one"], times["all"])
        value = statistics.median(times["all"]) / updates * 1e3
        name = f"step of {ROWS} rows a device over {devices}"
        results.append(report.Result(name, value, "ms", "as many rows on one device", middle, 1.1, spread))
    return results


def stepping(devices: int, rows: int, updates: int):
    """What makes so many updates on the first `devices` of them, with one batch of random ids."""
    config = configs.load(CONFIG, [*OVERRIDES, ("train.batch_size", str(rows)), ("mesh.data", str(devices))])
    spec = TrainSpec.build(config, jax.devices()[:devices])
    state = [spec.init(0, rows)]
    shapes = spec.features(rows, config.data.length)
    batch = spec.put({name: example(name, *given[:2]) for name, given in shapes.items()}, rows)

    def run() -> None:
        for _ in range(updates):
            state[0], metrics = spec.train_step(state[0], batch)
        jax.block_until_ready(metrics)

    return run


def example(name: str, shape, dtype) -> np.ndarray:
    """A feature: ids at random; ones where it says what counts."""
    if np.issubdtype(dtype, np.integer) and name in ("tokens", "targets"):
        return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    return np.ones(shape, dtype)


def disk(folder: Path, megabytes: int, rounds: int) -> list[report.Result]:
    """Saving and restoring against writing and reading as many bytes."""
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    state = {"params": {"w": jax.device_put(random(megabytes), rows)}}
    wanted = {"params": {"w": jax.ShapeDtypeStruct(state["params"]["w"].shape, np.float32, sharding=rows)}}
    checkpoints = CheckpointManager(str(folder / "run"), configs.load(CONFIG, []).checkpoint)
    content, raw = np.asarray(state["params"]["w"]).tobytes(), folder / "raw"
    step = iter(range(1, 1 << 20))

    def save() -> None:
        checkpoints.save(next(step), state, 0)
        checkpoints.wait()

    def write() -> None:
        with open(raw, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def read() -> None:
        raw.read_bytes()

    def load() -> None:
        newest = checkpoints.workdir.checkpoint(checkpoints.steps()[-1])
        if restore.damage(newest):
            raise SystemExit("the checkpoint is damaged")
        jax.block_until_ready(restore.read_state(newest, wanted))

    results = []
    for name, ours, theirs, against in (
        ("save", save, write, "writing and fsync of as many bytes"),
        ("checksums and restore", load, read, "reading as many bytes"),
    ):
        times = report.interleaved({"ours": ours, "theirs": theirs}, rounds)
        middle, spread = report.ratio(times["ours"], times["theirs"])
        value = megabytes / statistics.median(times["ours"])
        results.append(report.Result(f"{name} of {megabytes} MiB", value, "MiB/s", against, middle, None, spread))
    checkpoints.close()
    return results


def random(megabytes: int) -> np.ndarray:
    """float32 [rows, 1024] of so many bytes, which do not compress."""
    return np.random.default_rng(0).standard_normal((megabytes * MIB // 4096, 1024), np.float32)


def turns(folder: Path, processes: int, megabytes: int) -> list[dict]:
    """What each of so many processes found of itself."""
    work = {"folder": str(folder), "updates": TURNS, "megabytes": megabytes}
    return several.parts("scaling", folder / "parts", processes, EACH, work)


def part(path: str, folder: str, updates: int, megabytes: int) -> None:
    """One of several processes: the processor time of a turn of the loop, and what resharding takes."""
    start()
    config = configs.load(CONFIG, [*OVERRIDES, ("mesh.data", str(jax.device_count()))])
    assembly = build_run(config, str(Path(folder).parent / "run"), loop.silent)
    found = {"turn": loop.turn(assembly, f"{folder}/turn", updates, time.process_time)}
    if jax.process_count() > 1:
        found["resharded"] = resharded(folder, megabytes)
    several.tell(path, found)


def resharded(folder: str, megabytes: int) -> dict[str, tuple[float, float]]:
    """For each sharding the most memory beyond what was taken before, and what this process's devices hold, MiB."""
    devices = np.array(jax.devices())
    rows, mesh = NamedSharding(Mesh(devices, ("x",)), PartitionSpec("x")), Mesh(devices.reshape(2, 4), ("a", "b"))
    shape = (megabytes * MIB // 4096, 1024)

    def own(index) -> np.ndarray:
        first, last, _ = index[0].indices(shape[0])
        return np.random.default_rng(first).standard_normal((last - first, shape[1]), np.float32)

    checkpoints = CheckpointManager(f"{folder}/resharded", configs.load(CONFIG, []).checkpoint)
    checkpoints.save(1, {"params": {"w": jax.make_array_from_callback(shape, rows, own)}}, 0)
    checkpoints.wait()
    found = {}
    for name, spec in RESHARDED.items():
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        wanted = {"params": {"w": jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)}}
        with memory() as taken:
            restored = restore.read_state(checkpoints.workdir.checkpoint(1), wanted)["params"]["w"]
            jax.block_until_ready(restored)
        held = sum(shard.data.nbytes for shard in restored.addressable_shards) / MIB
        found[name] = taken[0], held
        del restored
    checkpoints.close()
    return found


@contextlib.contextmanager
def memory():
    """The most memory that this process takes within, beyond what it has now, in MiB, once it has ended."""
    taken = []
    ctypes.CDLL(None).malloc_trim(0)  # what is free is not taken
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    yield taken
    taken.append((status("VmHWM") - before) / 1024)


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    args = several.arguments(__doc__.split("\n")[0], part)
    quiet_libraries()
    rounds, updates, megabytes, over = (5, 2, 32, (8,)) if args.quick else (9, 10, 512, (2, 4, 8))
    keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="longhaul-") as name:
        folder = Path(name)
        results = weak(over, rounds, updates) + disk(folder / "disk", megabytes, rounds)
        (alone,), together = (turns(folder / str(count), count, megabytes) for count in (1, PROCESSES))
    each = [one["turn"] for one in together]
    ratios = [one / alone["turn"] for one in each]
    results.append(report.Result("the loop's own Python, a turn, in one process", alone["turn"] * 1e3, "ms"))
    results.append(
        report.Result(
            f"the same in each of {PROCESSES} processes",
            statistics.median(each) * 1e3,
            "ms",
            "one process",
            statistics.median(ratios),
            None,
            (min(ratios), max(ratios)),
        )
    )
    for case in RESHARDED:
        taken, held = (statistics.median(one["resharded"][case][which] for one in together) for which in (0, 1))
        shares = [one["resharded"][case][0] / one["resharded"][case][1] for one in together]
        results.append(
            report.Result(
                f"restoring {megabytes} MiB, {case}",
                taken,
                "MiB at most, of a process",
                f"the {held:.0f} MiB that it holds",
                statistics.median(shares),
                2.0,
                (min(shares), max(shares)),
            )
        )
    report.show(results, args, [CONFIG, ROWS, rounds, updates, megabytes])


if __name__ == "__main__":
    main()
