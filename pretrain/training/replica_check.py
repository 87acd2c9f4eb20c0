"""Silent data corruption: whether all devices that hold the same parameters hold the same bits of them."""

import socket
from collections import Counter

import jax
import numpy as np
from jax.experimental import multihost_utils

from models.layers.parameter import path_name
from pretrain.distributed.consensus import gathered
from pretrain.errors import FaultError, listed

SHOWN = 3  # devices that a sentence names


class Replicas:
    """Compares the train state of `engine` on all devices after every so many updates; `every` 0 never does."""

    def __init__(self, engine, every: int):
        self._engine, self._every, self._compared = engine, every, 0
        self._devices = list(engine.layout.mesh.devices.flat)
        self._first = None  # [devices, leaves]

    def due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def compare(self, state, step: int) -> None:
        """Raises FaultError in all processes where devices differ in what they should hold alike."""
        if not self._every or self._compared == step or len(self._devices) == 1:
            return
        state = state.replace(carried={})
        leaves = [leaf for _, leaf in jax.tree_util.tree_leaves_with_path(state)]
        if self._first is None:
            self._first = self._engine.checksums.first(leaves, self._devices)
        if (self._first == np.arange(len(self._devices))[:, None]).all():  # nothing is held twice
            return
        found = self._all(self._engine.checksums.weigh(leaves))
        alike = np.take_along_axis(found, self._first, axis=0) == found
        if not alike.all():
            names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
            raise FaultError(self._sentence(found, alike, names, step))
        self._compared = step

    def _all(self, own: dict) -> np.ndarray:
        """The rows of all devices, [devices, leaves], from those of this process by device."""
        place = {device: number for number, device in enumerate(self._devices)}
        table = np.zeros((len(self._devices), len(next(iter(own.values())))), np.uint32)
        for device, row in own.items():
            table[place[device]] = row
        if jax.process_count() == 1:
            return table
        tables = np.asarray(multihost_utils.process_allgather(table))
        owner = [device.process_index for device in self._devices]
        return np.stack([tables[process, number] for number, process in enumerate(owner)])

    def _sentence(self, found, alike, names, step: int) -> str:
        leaf = int(np.argmin(alike.all(axis=0)))
        place = int(np.argmin(alike[:, leaf]))
        group = [p for p in range(len(self._devices)) if self._first[p, leaf] == self._first[place, leaf]]
        (value, most), *_ = Counter(int(found[p, leaf]) for p in group).most_common()
        hosts = gathered(socket.gethostname())
        odd = [p for p in group if int(found[p, leaf]) != value] if most > len(group) / 2 else group
        named = [
            f"{self._devices[p]} of process {self._devices[p].process_index} on {hosts[self._devices[p].process_index]}"
            for p in odd
        ]
        named = listed(named, SHOWN)
        others = sum(not fine for fine in alike.all(axis=0)) - 1
        also = f" (and {others} more)" if others else ""
        if len(odd) < len(group):
            said = f"{named} has other bits than the {most} devices that should hold the same"
        else:
            said = f"{named} should hold the same bits, and do not"
        return (
            f"after update {step} the devices differ in '{names[leaf]}'{also}: {said}; a device's memory or arithmetic "
            "is at fault, so nothing was saved; start the same command again to go on from the newest checkpoint, and "
            "without that machine if this is said again"
        )
