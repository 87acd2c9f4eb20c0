"""Bytes of trees of shapes, and whether a run's state fits the devices before anything is allocated."""

import math
import os

import jax
import jax.numpy as jnp

from pretrain.errors import UserError
from pretrain.metrics.progress import amount

REMEDY = "Split it with config.mesh.fsdp, or lower the model or the batch size."


def whole_bytes(shapes) -> int:
    """Bytes of a tree of shapes, whatever their sharding."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def on_device(shapes, dtype=None) -> int:
    """Bytes on one device of a tree of shapes with shardings, in their own dtype or in `dtype`."""
    leaves = jax.tree.leaves(shapes)
    sizes = ((leaf.sharding.shard_shape(leaf.shape), jnp.dtype(dtype or leaf.dtype).itemsize) for leaf in leaves)
    return sum(math.prod(shape) * itemsize for shape, itemsize in sizes)


def check_memory(spec, config) -> None:
    """Raises UserError where the training state alone exceeds the memory of a device or of this host.

    This is a floor: parameters, gradients, optimizer state, teacher, recurrent memory and the inputs of all layers,
    which wait for the backward pass under any remat policy. A run that passes may still need more.
    """
    train, mesh = config.train, spec.layout.mesh
    # Shapes with shardings: `on_device` gives one device's share of each.
    state = spec.padded_shapes(train.batch_size)
    tokens = train.batch_size // train.accumulate * config.data.length
    shards = spec.layout.batch_shards() * mesh.shape["sequence"]
    layer_inputs = config.model.layers * tokens * config.model.width * jnp.dtype(config.model.dtype).itemsize // shards
    needed = (
        on_device(state.params)
        + on_device(spec.partition.trained(state.params))  # gradients
        + on_device(state.opt_state)
        + on_device(state.carried)
        + on_device(spec.frozen_shapes())
        + layer_inputs
    )
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    if local[0].platform == "cpu":  # CPU devices share the host's memory
        needed, free = needed * len(local), _free_on_host()
    else:
        free = (local[0].memory_stats() or {}).get("bytes_limit", math.inf)
    if needed > free:
        raise UserError(f"config.model: training needs {amount(needed)}B of {amount(free)}B of memory. {REMEDY}")


def _free_on_host() -> float:
    """Bytes that Linux can give a program; infinity on other systems."""
    if not os.path.exists("/proc/meminfo"):
        return math.inf
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":") for line in file)
    return 1024 * int(lines["MemAvailable"].split()[0])
