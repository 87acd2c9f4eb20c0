"""Whether a run fits the machine, worked out before anything is allocated.

What is counted from shapes is a floor, what no compiler can do without: a run that is refused cannot be, one that is
not may still need more. An accelerator then says so itself, of which there is an error. A host's kernel kills instead:
there the step is compiled first where that floor leaves a doubt.
"""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from models.layers.parameter import path_name
from pretrain import config as configs
from pretrain.errors import UserError
from pretrain.metrics.progress import amount
from pretrain.step import recurrent_state


def whole_bytes(shapes) -> int:
    """Bytes of all of a tree of shapes, wherever it lies."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def on_device(shapes, dtype=None) -> int:
    """Bytes on one device of a tree of shapes with shardings; in another type if one is given."""
    leaves = jax.tree.leaves(shapes)
    sizes = ((leaf.sharding.shard_shape(leaf.shape), jnp.dtype(dtype or leaf.dtype).itemsize) for leaf in leaves)
    return sum(math.prod(shape) * itemsize for shape, itemsize in sizes)


# Where Linux keeps a container's memory, its end and what is used of it: control groups of version 2 and 1.
CONTAINER = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
DOUBT = 50  # times the layers' inputs: more than a step keeps for its backward pass
QUEUED = 2  # batches on their way besides those that are read ahead


class Need(NamedTuple):
    """Bytes that something takes on each device, or on each host, and what makes them fewer."""

    what: str
    device: int
    host: int
    remedy: str
    least: float = 1.0  # share of them that the smallest batch takes
    whole: int = 0  # bytes before the mesh divides them, of what more devices can share


def check_training(spec, config) -> None:
    """Raises UserError where the devices or this host have not the memory to train."""
    train, length = config.train, config.data.length
    state = spec.padded_shapes(train.batch_size)
    weights, whole = (
        2 * count(state.params) + count(state.opt_state) for count in (on_device, whole_bytes)
    )  # and gradients
    # Each layer's input waits for the backward pass, whatever else is computed again.
    rows = train.batch_size // train.accumulate
    inputs = config.model.layers * _layer_input(spec, config, rows, length)
    needs = (
        Need(
            f"parameters, gradients and optimiser state (of which {_largest(state.params)} is the largest)",
            *(weights, 0),
            "make the model smaller or split it over more devices with config.mesh.fsdp",
            whole=whole,
        ),
        Need("the teacher", on_device(spec.frozen_shapes()), 0, "choose a smaller one in config.distill.teacher"),
        Need("recurrent memory", on_device(state.carried), 0, "lower config.model.memory or config.train.batch_size"),
        Need(
            "the layers' inputs",
            *(inputs, 0),
            "lower config.train.batch_size or raise config.train.accumulate",
            least=spec.layout.batch_shards() / rows,
        ),
        Need(
            "batches",
            *(0, _batches(spec, config, train.batch_size, length)),
            "lower config.train.batch_size or data.prefetch",
            least=0.0,
        ),
    )
    devices = list(spec.layout.mesh.devices.flat)
    _compare("training", needs, devices)
    on_host = devices[0].platform == "cpu" and jax.process_count() == 1 and train.backend == "jit"
    if on_host and DOUBT * len(devices) * inputs > free_memory():
        _check_step(spec, config, len(devices))


def _check_step(spec, config, devices: int) -> None:
    """Raises UserError where so many devices of this host have not the memory for a step, as it is compiled."""
    facts = spec.lower_train_step(config.train.batch_size, config.data.length).compile().memory_analysis()
    own = facts.output_size_in_bytes - facts.alias_size_in_bytes + facts.temp_size_in_bytes
    needed, free = devices * (facts.argument_size_in_bytes + own), free_memory()
    if needed > free:
        raise UserError(
            f"a training step needs {amount(needed)}B on this machine, {amount(devices * own)}B of it for activations, "
            f"gradients and the like, and {amount(free)}B are there; lower config.train.batch_size, raise "
            "config.train.accumulate or set --config.model.remat=full"
        )


def check_evaluation(spec, config) -> None:
    """Raises UserError where the devices or this host have not the memory to evaluate."""
    size = spec.layout.filled(config.evaluate.batch_size)
    length = configs.scored_length(config)
    params = spec.padded_shapes(spec.layout.batch_shards()).params
    memory = recurrent_state.shapes(spec.eval_model, size)
    shared = whole_bytes(memory) // spec.layout.batch_shards()
    lower = "lower config.evaluate.batch_size, which is --batch_size of `pretrain evaluate`"
    needs = (
        Need(
            f"parameters (of which {_largest(params)} is the largest)",
            on_device(params),
            0,
            "split them over more devices with config.mesh.fsdp",
            whole=whole_bytes(params),
        ),
        Need("recurrent memory", shared, 0, lower),
        Need(
            "a layer's input",
            *(_layer_input(spec, config, size, length), 0),
            lower,
            least=spec.layout.batch_shards() / size,
        ),
        Need("batches", 0, _batches(spec, config, size, length), lower, least=0.0),
    )
    _compare("evaluation", needs, spec.layout.mesh.devices.flat)


def check_decoding(model, carried, prompts: int, beams: int, devices: Iterable, remedy: str) -> None:
    """Raises UserError, with the `remedy`, where each of `devices` has not the memory to continue so many prompts.

    carried: what the model carries from token to token for the prompts alone, each of which has so many beams.
    """
    rows = prompts * beams
    needs = (
        Need("keys and values of earlier tokens", beams * whole_bytes(carried), 0, remedy),
        Need("logits", rows * model.vocab_size * 4, 0, remedy),
    )
    _compare("generation", needs, devices)


def _compare(task: str, needs: Sequence[Need], devices: Iterable) -> None:
    here = [device for device in devices if device.process_index == jax.process_index()]
    if here[0].platform == "cpu":  # its devices share the host's memory
        needs = [need._replace(device=0, host=need.host + len(here) * need.device) for need in needs]
    limit_of_device = (here[0].memory_stats() or {}).get("bytes_limit", math.inf)
    for place, having, limit in (("device", "each device", limit_of_device), ("host", "this machine", free_memory())):
        total = sum(getattr(need, place) for need in needs)
        if total > limit:
            most, remedy = _most(needs, place, limit)
            raise UserError(
                f"{task} needs at least {amount(total)}B on {having}, {amount(getattr(most, place))}B of it for "
                f"{most.what}, and {amount(limit)}B are there; {remedy}"
            )


def _most(needs: Sequence[Need], place: str, limit: float) -> tuple[Need, str]:
    """What takes the most of what is to be fewer, and how: a smaller batch only where that is enough."""
    least = {need: getattr(need, place) * need.least for need in needs}
    if sum(least.values()) <= limit:
        most = max(needs, key=lambda need: getattr(need, place) * (1 - need.least))
        return most, most.remedy
    most = max(needs, key=least.get)
    if most.least < 1:
        return most, "a row on each device is too much already: make rows shorter or the model smaller"
    left = limit - (sum(least.values()) - least[most])  # of each device, for its share of that
    count = math.ceil(most.whole / left) if left > 0 else 0
    of_so_many = f", {count} or more with as much memory each" if count > 1 else ""
    return most, most.remedy + of_so_many


def free_memory() -> float:
    """Bytes of this host's memory that a program can have; infinity where the system does not say."""
    limits = [_free_in_container(Path(folder), *names) for folder, *names in CONTAINER]
    if os.path.exists("/proc/meminfo"):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(1024 * int(lines["MemAvailable"].split()[0]))
    return min(limits)


def _free_in_container(folder: Path, limit: str, used: str) -> float:
    """Bytes that a control group has left. Cached files count as left: the kernel drops them for who asks."""
    text = (folder / limit).read_text().strip() if (folder / limit).exists() else ""
    if not text.isdecimal():  # no group, or one without end
        return math.inf
    held = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    cached = int(held["active_file"]) + int(held["inactive_file"])
    return max(0, int(text) - max(0, int((folder / used).read_text()) - cached))


def _largest(params) -> str:
    path, leaf = max(jax.tree_util.tree_leaves_with_path(params), key=lambda item: item[1].size)
    return f"{path_name(path)}, {' x '.join(f'{size:,}' for size in leaf.shape)},"


def _layer_input(spec, config, batch_size: int, length: int) -> int:
    """Bytes of the residual stream [B, T, D] of one layer on one device."""
    shards = spec.layout.batch_shards() * spec.layout.mesh.shape["sequence"]
    itemsize = jax.numpy.dtype(config.model.dtype).itemsize
    return batch_size * length * config.model.width * itemsize // shards


def _batches(spec, config, batch_size: int, length: int) -> int:
    """Bytes of the batches that are read ahead, on one host."""
    features = spec.features(batch_size, length).values()
    one = sum(math.prod(feature.shape) * feature.dtype.itemsize for feature in features)
    return one * (config.data.prefetch + QUEUED) // jax.process_count()
