"""`jax.pmap`, which needs no mesh: data parallel, and nothing else."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property, partial

import jax
import numpy as np
from jax.sharding import PartitionSpec

from pretrain.distributed.consensus import Together
from pretrain.errors import UserError
from pretrain.parallel.mesh import AXES, Layout
from pretrain.step import checksums, recurrent_state
from pretrain.step.backends import Engine, initial, lane_shardings, with_shardings
from pretrain.step.recurrent_state import start
from pretrain.step.train_step import Learner, TrainState, evaluate_step, state_shapes, train_step, unboxed


class PmapEngine(Engine):
    """`jax.pmap`: every device holds the whole state and a share of the batch's rows.

    State and batches carry a leading axis of this process's devices; in checkpoints they do not.
    """

    def __init__(self, learner: Learner, config, mesh_of: Callable):
        for axis in ("fsdp", "sequence", "tensor"):
            if config.mesh[axis] not in (1, -1):
                raise UserError(
                    f"config.mesh.{axis} = {config.mesh[axis]} and config.train.backend = 'pmap' exclude each other; "
                    "set it to 1, or the backend to 'jit'"
                )
        self.learner, self.frozen = learner, {}
        sizes = dict.fromkeys(AXES, 1) | {"data": -1}
        self.layout = Layout(mesh_of(sizes), (("batch", "data"), ("length", None), ("layers", None)))

    @cached_property
    def local(self) -> list:
        """This process's devices."""
        return [d for d in self.layout.mesh.devices.flat if d.process_index == jax.process_index()]

    @cached_property
    def _step(self):
        return Together(self._pmap(partial(train_step, self.learner, axis_name="data"), donate_argnums=0))

    @cached_property
    def _evaluate(self):
        def evaluate(params, batch, carried, frozen):
            sums, carried = evaluate_step(self.learner, params, batch, carried, frozen)
            return jax.lax.psum(sums, "data"), carried

        return Together(self._pmap(evaluate))

    @cached_property
    def checksums(self) -> checksums.Checksums:
        return checksums.Whole(self._pmap)

    @cached_property
    def _place(self):
        return self._pmap(lambda tree: tree)

    @cached_property
    def _lane_axes(self):
        return recurrent_state.axes(self.learner.model)

    def _pmap(self, function: Callable, **options):
        devices = self.local if jax.process_count() == 1 else None
        return jax.pmap(function, axis_name="data", devices=devices, **options)

    def shapes(self, batch_size: int) -> TrainState:
        shapes = state_shapes(self.learner, batch_size)
        shardings = jax.tree.map(lambda _: self.layout.sharding(), shapes)
        carried = lane_shardings(self.layout, self.learner.model, batch_size)
        return with_shardings(shapes, shardings.replace(carried=carried))

    resting_shapes = shapes  # nothing is split that would need padding

    def init(self, seed: int, batch_size: int) -> TrainState:
        return self.restored(initial(self.learner, self.shapes(batch_size), seed, batch_size))

    def scope(self):
        return nullcontext()

    def put(self, batch: Mapping, size: int):
        return {name: rows.reshape(len(self.local), -1, *rows.shape[1:]) for name, rows in batch.items()}

    def step(self, state: TrainState, batch):
        state, metrics = self._step(state, batch, self.frozen)
        return state, jax.tree.map(_first, metrics)

    def evaluate(self, params, batch, carried):
        sums, carried = self._evaluate(params, batch, carried, self.frozen)
        return jax.tree.map(_first, sums), carried

    def frozen_shapes(self):
        shapes = unboxed(self.learner.frozen)
        return with_shardings(shapes, jax.tree.map(lambda _: self.layout.sharding(), shapes))

    def hold(self, frozen) -> None:
        self.frozen = self._place(jax.tree.map(self._copies, frozen)) if frozen else {}

    def _start(self, model, batch_size: int):
        carried = start(model, batch_size // self.layout.batch_shards())
        return self._place(jax.tree.map(self._copies, carried)) if carried else carried

    def restored_params(self, checkpoints, step: int):
        params = checkpoints.restore_params(step, self.shapes(self.layout.batch_shards()).params)
        return self._place(jax.tree.map(self._copies, params))

    def whole(self, params):
        return jax.tree.map(self._whole, params)

    def saved(self, state: TrainState) -> TrainState:
        whole = jax.tree.map(self._whole, state.replace(carried={}))
        return whole.replace(carried=jax.tree.map(self._join_lanes, state.carried, self._lane_axes))

    def restored(self, state: TrainState) -> TrainState:
        whole = jax.tree.map(self._copies, state.replace(carried={}))
        return self._place(whole.replace(carried=jax.tree.map(self._lanes, state.carried, self._lane_axes)))

    def _copies(self, leaf):
        """A copy for each device of this process: [devices, ...]."""
        return np.broadcast_to(np.asarray(leaf), (len(self.local), *leaf.shape))

    def _whole(self, copies):
        """The inverse of `_copies`: a global array, of which every device holds all."""
        array = np.asarray(_first(copies))
        return jax.make_array_from_callback(array.shape, self.layout.sharding(), lambda index: array[index])

    def _lanes(self, carried, axis: int):
        """This process's share of a global array whose lanes are on `axis`: [devices, ...], the lanes divided."""
        shards = sorted(carried.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
        return np.stack([np.asarray(shard.data) for shard in shards])

    def _join_lanes(self, carried, axis: int):
        """The inverse of `_lanes`."""
        shards = sorted(carried.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        local = np.concatenate([np.asarray(shard.data)[0] for shard in shards], axis=axis)
        size = local.shape[axis] // len(self.local) * self.layout.batch_shards()
        position = {row: i for i, row in enumerate(self.rows(size))}

        def part(index):
            here = range(*index[axis].indices(size))
            first = position[here[0]]
            return np.take(local, range(first, first + len(here)), axis=axis)

        shape = (*local.shape[:axis], size, *local.shape[axis + 1 :])
        sharding = self.layout.sharding(PartitionSpec(*[None] * axis, "data"))
        return jax.make_array_from_callback(shape, sharding, part)


def _first(leaf):
    """This process's first device's copy of a replicated pmap output."""
    return leaf.addressable_shards[0].data[0]
