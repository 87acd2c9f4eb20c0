"""Detection of silent data corruption: devices that hold the same parameters must hold the same bits."""

import socket
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from models.layers.init import path_name
from pretrain.distributed.consensus import allgather_json
from pretrain.errors import FaultError, join_some
from pretrain.step.train_spec import TrainSpec

SHOWN = 3  # devices named in an error
WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


class ReplicaCheck:
    """Compares the replicas of the train state on all devices; `enabled` false never does."""

    def __init__(self, spec: TrainSpec, enabled: bool):
        self._spec, self._devices = spec, list(spec.mesh.devices.flat)
        self._enabled = enabled and len(self._devices) > 1
        self._step_compared = self._program = self._first = None

    def compare(self, state, step: int) -> None:
        """Raise FaultError in all processes where replicas differ. Each state is compared once."""
        if not self._enabled or self._step_compared == step:
            return
        # The recurrent state belongs to rows of the batch, and no row is on two devices.
        paths, leaves = zip(*jax.tree_util.tree_leaves_with_path(state.replace(carried={})), strict=True)
        if self._first is None:
            self._first = self._first_replicas(leaves)
            self._program = self._spec.map_devices(checksums, list(leaves))
        # A device that is the first to hold each of its parts has no replica to compare with.
        if (self._first == np.arange(len(self._devices))[:, None]).all():
            return
        sums = self._gather(self._program(list(leaves)))
        # Each device's checksum against that of the first device with the same part.
        equal = np.take_along_axis(sums, self._first, axis=0) == sums
        if not equal.all():
            raise FaultError(self._message(sums, equal, [path_name(path) for path in paths], step))
        self._step_compared = step

    def _first_replicas(self, leaves) -> np.ndarray:
        """[devices, leaves]: the index of the first device that holds the same part of a leaf."""
        columns = []
        for leaf in leaves:
            parts, first = self._spec.part_of_device(leaf), {}
            columns.append([first.setdefault(parts[device], index) for index, device in enumerate(self._devices)])
        return np.asarray(columns).T

    def _gather(self, rows: jax.Array) -> np.ndarray:
        """Checksums of all devices, [devices, leaves], from those of each process's own."""
        index = {device: number for number, device in enumerate(self._devices)}
        table = np.zeros(self._first.shape, np.uint32)
        for shard in rows.addressable_shards:
            table[index[shard.device]] = np.asarray(shard.data).reshape(-1)
        if jax.process_count() == 1:
            return table
        tables = np.asarray(multihost_utils.process_allgather(table))
        return np.stack([tables[device.process_index, number] for number, device in enumerate(self._devices)])

    def _message(self, sums, equal, names, step: int) -> str:
        leaf = int(np.argmin(equal.all(axis=0)))
        first = self._first[:, leaf] == self._first[np.argmin(equal[:, leaf]), leaf]
        replicas = np.flatnonzero(first)
        values, counts = np.unique(sums[replicas, leaf], return_counts=True)
        # A majority shows which devices are at fault; without one any of them may be.
        if 2 * counts.max() > len(replicas):
            replicas = replicas[sums[replicas, leaf] != values[counts.argmax()]]
        hosts, devices = allgather_json(socket.gethostname()), [self._devices[index] for index in replicas]
        faulty = join_some([f"{d} of process {d.process_index} on {hosts[d.process_index]}" for d in devices], SHOWN)
        return (
            f"after step {step} replicas of '{names[leaf]}' differ on {faulty}: a device's memory or arithmetic is at "
            "fault. Nothing was saved. Start the same command again, without that machine if this repeats."
        )


def checksums(leaves: Sequence[jax.Array]) -> jax.Array:
    """uint32 [len(leaves)]: for each array the sum of its numbers' bits, each times an odd weight.

    Modulo 2^32 an odd factor is invertible, so a change of any single number changes the sum.
    """
    return jnp.stack([_checksum(leaf) for leaf in leaves])


def _checksum(leaf: jax.Array) -> jax.Array:
    leaf = leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf
    bits = jax.lax.bitcast_convert_type(leaf, WORDS[leaf.dtype.itemsize]).astype(jnp.uint32)
    # The flat index of each number, without a reshape: that would gather an array that is split.
    index = jnp.zeros(leaf.shape, jnp.uint32)
    for axis, size in enumerate(leaf.shape):
        index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    # The weights differ by place, so that two swapped numbers change the sum as well.
    return jnp.sum(bits * (2 * index + 1), dtype=jnp.uint32)
