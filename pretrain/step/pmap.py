"""The step under `jax.pmap`: data parallelism alone."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property, partial

import jax
import numpy as np
from jax.sharding import PartitionSpec

from pretrain.distributed.consensus import SyncedFunction
from pretrain.errors import UserError
from pretrain.parallel.mesh import AXES
from pretrain.step import recurrent_state
from pretrain.step.jit import init_sharded, recurrent_leaves, with_shardings
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import TrainState, evaluate_step, state_shapes, train_step, unboxed


@dataclasses.dataclass(eq=False, kw_only=True)
class PmapSpec(TrainSpec):
    """Every device holds the whole state and a share of the batch's rows.

    State and batches have a leading axis of this process's devices; checkpoints do not.
    """

    @classmethod
    def mesh_and_rules(cls, config):
        for axis in ("fsdp", "sequence", "tensor"):
            if config.mesh[axis] not in (1, -1):
                raise UserError(
                    f"config.mesh.{axis}={config.mesh[axis]} needs config.train.backend='jit'. Set that, or 1 device."
                )
        rules = (("batch", "data"), ("length", None), ("layers", None))
        return dict.fromkeys(AXES, 1) | {"data": -1}, rules

    @cached_property
    def _devices(self) -> list:
        """This process's devices."""
        return [device for device in self.mesh.devices.flat if device.process_index == jax.process_index()]

    @cached_property
    def _step(self):
        return SyncedFunction(self._pmap(partial(train_step, self, axis_name="data"), donate_argnums=0))

    @cached_property
    def _evaluate(self):
        def evaluate(params, batch, carried, frozen):
            sums, carried = evaluate_step(self, params, batch, carried, frozen, "data")
            # Only sums are added up: the recurrent state belongs to a device's own rows.
            outputs = jax.lax.all_gather(sums.pop("outputs"), "data", tiled=True)
            return jax.lax.psum(sums, "data") | {"outputs": outputs}, carried

        return SyncedFunction(self._pmap(evaluate))

    @cached_property
    def _place(self):
        # An identity under pmap copies host arrays to the devices, in pmap's own sharding.
        return self._pmap(lambda tree: tree)

    @cached_property
    def _row_axes(self):
        return recurrent_state.axes(self.model)

    def _pmap(self, function: Callable, **options):
        # With several processes pmap uses all devices by itself, and refuses a list of one process's.
        devices = self._devices if jax.process_count() == 1 else None
        return jax.pmap(function, axis_name="data", devices=devices, **options)

    def parts(self, rows: int) -> int:
        return super().parts(rows * self.layout.batch_shards())  # a device sees its own rows

    def checkpoint_shapes(self, batch_size: int) -> TrainState:
        carried = recurrent_leaves(self.layout, self.model, batch_size)
        return self._replicated(state_shapes(self, batch_size)).replace(carried=carried)

    padded_shapes = checkpoint_shapes  # nothing is split, so nothing is padded

    def init(self, seed: int, batch_size: int) -> TrainState:
        return self.from_checkpoint(init_sharded(self, self.checkpoint_shapes(batch_size), seed, batch_size))

    def scope(self):
        return nullcontext()

    def put(self, batch: Mapping, size: int):
        # Row i goes to device i // (rows / devices), as under jit over a `data` axis.
        return {name: rows.reshape(len(self._devices), -1, *rows.shape[1:]) for name, rows in batch.items()}

    def train_step(self, state: TrainState, batch):
        state, metrics = self._step(state, batch, self.frozen)
        return state, jax.tree.map(_first, metrics)

    def eval_step(self, params, batch, carried):
        sums, carried = self._evaluate(params, batch, carried, self.frozen)
        return jax.tree.map(_first, sums), carried

    def frozen_shapes(self):
        return self._replicated(unboxed(self.frozen_parameters))

    def _replicated(self, shapes):
        return with_shardings(shapes, jax.tree.map(lambda _: self.layout.sharding(), shapes))

    def set_frozen(self, frozen) -> None:
        self.frozen = self._place(jax.tree.map(self._replicate, frozen)) if frozen else {}

    def init_recurrent_state(self, model, batch_size: int):
        carried = recurrent_state.start(model, batch_size // self.layout.batch_shards())
        return self._place(jax.tree.map(self._replicate, carried)) if carried else carried

    def restore_params(self, checkpoints, step: int):
        params = checkpoints.restore_params(step, self.checkpoint_shapes(self.layout.batch_shards()).params)
        return self._place(jax.tree.map(self._replicate, params))

    def to_global(self, params):
        return jax.tree.map(self._join_replicas, params)

    def to_checkpoint(self, state: TrainState) -> TrainState:
        whole = jax.tree.map(self._join_replicas, state.replace(carried={}))
        return whole.replace(carried=jax.tree.map(self._join_rows, state.carried, self._row_axes))

    def from_checkpoint(self, state: TrainState) -> TrainState:
        whole = jax.tree.map(self._replicate, state.replace(carried={}))
        return self._place(whole.replace(carried=jax.tree.map(self._split_rows, state.carried, self._row_axes)))

    def map_devices(self, function: Callable, leaves: list[jax.Array]) -> Callable:
        return self._pmap(function)

    def part_of_device(self, leaf: jax.Array) -> dict:
        return dict.fromkeys(self.mesh.devices.flat, "all")

    def _replicate(self, leaf):
        """A copy for each device of this process: [devices, ...]."""
        # A view: the host holds one copy, whatever the number of devices.
        return np.broadcast_to(np.asarray(leaf), (len(self._devices), *leaf.shape))

    def _join_replicas(self, copies):
        """The inverse of `_replicate`: a global array, of which every device holds all."""
        array = np.asarray(_first(copies))
        return jax.make_array_from_callback(array.shape, self.layout.sharding(), lambda index: array[index])

    def _split_rows(self, carried, axis: int):
        """This process's share of a global array whose rows are on `axis`: [devices, ...], the rows divided."""
        # Sorted by rows: the order of shards is that of devices.
        shards = sorted(carried.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
        return np.stack([np.asarray(shard.data) for shard in shards])

    def _join_rows(self, carried, axis: int):
        """The inverse of `_split_rows`."""
        shards = sorted(carried.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        local = np.concatenate([np.asarray(shard.data)[0] for shard in shards], axis=axis)
        size = local.shape[axis] // len(self._devices) * self.layout.batch_shards()
        position = {row: i for i, row in enumerate(self.layout.rows(size))}  # global row -> place in `local`

        def part(index):
            # Rows of one shard are neighbours in the global batch, and so in `local`.
            here = range(*index[axis].indices(size))
            first = position[here[0]]
            return np.take(local, range(first, first + len(here)), axis=axis)

        shape = (*local.shape[:axis], size, *local.shape[axis + 1 :])
        sharding = self.layout.sharding(PartitionSpec(*[None] * axis, "data"))
        return jax.make_array_from_callback(shape, sharding, part)


def _first(leaf):
    """This process's first device's copy of a replicated pmap output."""
    return leaf.addressable_shards[0].data[0]
