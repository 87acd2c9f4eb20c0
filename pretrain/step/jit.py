"""The step under `jax.jit` over a mesh (data, fsdp, sequence, tensor); it also lowers for devices that are absent."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property, partial

import jax
from jax.sharding import PartitionSpec

from models.layers.init import is_box
from pretrain.distributed.consensus import SyncedFunction
from pretrain.parallel import vocab_padding
from pretrain.step import recurrent_state
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import TrainState, evaluate_step, init_state, state_shapes, train_step, unboxed


@dataclasses.dataclass(eq=False, kw_only=True)
class JitSpec(TrainSpec):
    """State and batches are global arrays.

    Between steps every sharded axis is padded to a multiple of its shards (`pretrain.parallel.vocab_padding`); inside
    a step and in checkpoints arrays have their true shapes.
    """

    @classmethod
    def mesh_and_rules(cls, config):
        return config.mesh, config.mesh.rules

    @cached_property
    def _step(self):
        # Donated: new parameters and moments are written over the old ones.
        return SyncedFunction(jax.jit(self._train, donate_argnums=0))

    @cached_property
    def _evaluate(self):
        # Shardings do not depend on the number of rows, so those of the fewest rows serve any batch.
        carried = shardings_of(recurrent_leaves(self.layout, self.eval_model, self.layout.batch_shards()))
        return SyncedFunction(jax.jit(self._score, out_shardings=(self.layout.sharding(), carried)))

    def _train(self, state, batch, frozen):
        # Traced once for each batch size: `row` has one number a row.
        leaves, frozen = self._leaves(len(batch["row"])), vocab_padding.strip(frozen, self._frozen_leaves)
        state, metrics = train_step(self, vocab_padding.strip(state, leaves), batch, frozen)
        # Without the constraint XLA may return a leaf in another sharding, and its buffer could not be donated.
        return jax.lax.with_sharding_constraint(vocab_padding.fill(state, leaves), shardings_of(leaves)), metrics

    def _score(self, params, batch, carried, frozen):
        params = vocab_padding.strip(params, self._fixed_leaves.params)
        return evaluate_step(self, params, batch, carried, vocab_padding.strip(frozen, self._frozen_leaves))

    @cached_property
    def _fixed_leaves(self) -> TrainState:
        """True shape, dtype and sharding of each leaf but the recurrent state, whose shape depends on the batch."""
        shapes = state_shapes(self, 1).replace(carried={})
        parameters = self.layout.parameters(self.parameters)
        # Moments are sharded as their parameters, so that an update needs no communication.
        moments = self.layout.optimizer(shapes.opt_state, parameters, shapes.params)
        replicated = jax.tree.map(lambda _: self.layout.sharding(), shapes)
        return with_shardings(shapes, replicated.replace(params=parameters, opt_state=moments))

    def _leaves(self, batch_size: int) -> TrainState:
        return self._fixed_leaves.replace(carried=recurrent_leaves(self.layout, self.model, batch_size))

    @cached_property
    def _frozen_leaves(self):
        return with_shardings(unboxed(self.frozen_parameters), self.layout.parameters(self.frozen_parameters))

    def checkpoint_shapes(self, batch_size: int) -> TrainState:
        return jax.tree.map(vocab_padding.stored, self._leaves(batch_size))

    def padded_shapes(self, batch_size: int) -> TrainState:
        return jax.tree.map(vocab_padding.padded, self._leaves(batch_size))

    def frozen_shapes(self):
        return jax.tree.map(vocab_padding.stored, self._frozen_leaves)

    def set_frozen(self, frozen) -> None:
        self.frozen = vocab_padding.to_padded(frozen, self._frozen_leaves)

    def init(self, seed: int, batch_size: int) -> TrainState:
        # Each device makes its own shards: no host ever holds the whole model.
        with self.scope():
            return init_sharded(self, self._leaves(batch_size), seed, batch_size)

    @cached_property
    def _axes(self) -> dict:
        return {name: feature.axes for name, feature in self.features(1, self.length).items()}

    def put(self, batch: Mapping, size: int):
        return self.layout.put(batch, self._axes, size)

    def train_step(self, state: TrainState, batch):
        with self.scope():
            return self._step(state, batch, self.frozen)

    def eval_step(self, params, batch, carried):
        with self.scope():
            return self._evaluate(params, batch, carried, self.frozen)

    def lower_train_step(self, batch_size: int, length: int) -> jax.stages.Lowered:
        """The program of `train_step` before it is compiled; nothing is allocated."""
        frozen = jax.tree.map(vocab_padding.padded, self._frozen_leaves)
        with self.scope():
            batch = self.sharded_batch_shapes(batch_size, length)
            return self._step.lower(self.padded_shapes(batch_size), batch, frozen)

    def lower_eval_step(self, batch_size: int, length: int) -> jax.stages.Lowered:
        """The program of `eval_step` before it is compiled; nothing is allocated."""
        carried = recurrent_leaves(self.layout, self.eval_model, batch_size)
        params, frozen = jax.tree.map(vocab_padding.padded, (self._fixed_leaves.params, self._frozen_leaves))
        with self.scope():
            return self._evaluate.lower(params, self.sharded_batch_shapes(batch_size, length), carried, frozen)

    def sharded_batch_shapes(self, batch_size: int, length: int):
        """Shape, dtype and sharding of the features of a batch."""
        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=self.layout.batch(shape, axes))
            for name, (shape, dtype, axes) in self.features(batch_size, length).items()
        }

    def scope(self):
        return self.layout.scope()

    def init_recurrent_state(self, model, batch_size: int):
        make = partial(recurrent_state.start, model, batch_size)
        return jax.jit(make, out_shardings=shardings_of(recurrent_leaves(self.layout, model, batch_size)))()

    def restore_params(self, checkpoints, step: int):
        leaves = self._fixed_leaves.params
        params = checkpoints.restore_params(step, jax.tree.map(vocab_padding.stored, leaves))
        return vocab_padding.to_padded(params, leaves)

    def to_global(self, params):
        return vocab_padding.to_stored(params, self._fixed_leaves.params)

    def to_checkpoint(self, state: TrainState) -> TrainState:
        return self._convert(vocab_padding.to_stored, state)

    def from_checkpoint(self, state: TrainState) -> TrainState:
        return self._convert(vocab_padding.to_padded, state)

    def _convert(self, convert: Callable, state: TrainState) -> TrainState:
        leaves = self._fixed_leaves
        # Step, rng, counters and recurrent state are never padded.
        params, opt_state = convert(state.params, leaves.params), convert(state.opt_state, leaves.opt_state)
        return state.replace(params=params, opt_state=opt_state)

    def map_devices(self, function: Callable, leaves: list[jax.Array]) -> Callable:
        def row(parts):
            return function(parts)[None]

        # Each device sees its own shards alone: a program without collectives finds what differs.
        specs, rows = [leaf.sharding.spec for leaf in leaves], PartitionSpec(self.mesh.axis_names)
        return jax.jit(jax.shard_map(row, mesh=self.mesh, in_specs=(specs,), out_specs=rows, check_vma=False))

    def part_of_device(self, leaf: jax.Array) -> dict:
        parts = leaf.sharding.devices_indices_map(leaf.shape)
        # Slices are not hashable before Python 3.12.
        return {device: tuple((piece.start, piece.stop) for piece in part) for device, part in parts.items()}


def init_sharded(spec: TrainSpec, leaves: TrainState, seed: int, batch_size: int) -> TrainState:
    """The initial state, padded and sharded as `leaves`."""
    # It runs once, so on a CPU a fast compilation matters more than a fast program.
    level = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None

    def make(seed):
        return vocab_padding.fill(init_state(spec, seed, batch_size), leaves)

    return jax.jit(make, static_argnums=0, compiler_options=level, out_shardings=shardings_of(leaves))(seed)


def recurrent_leaves(layout, model, batch_size: int):
    """Shape, dtype and sharding of the recurrent state: split by row, as the batch is."""

    def one(box):
        sharding = layout.sharding(layout.spec("carried", box.names, box.value.shape))
        return jax.ShapeDtypeStruct(box.value.shape, box.value.dtype, sharding=sharding)

    return jax.tree.map(one, recurrent_state.boxed(model, batch_size), is_leaf=is_box)


def shardings_of(leaves):
    """The sharding of each leaf."""
    return jax.tree.map(lambda leaf: leaf.sharding, leaves)


def with_shardings(shapes, shardings):
    """Shapes with the sharding of each array."""
    return jax.tree.map(lambda s, d: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=d), shapes, shardings)
