"""`jax.jit` over a mesh; its programs can also be lowered for devices that are not there."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial

import jax

from pretrain.distributed.consensus import Together
from pretrain.parallel import vocab_padding
from pretrain.parallel.mesh import Layout
from pretrain.step import checksums, recurrent_state
from pretrain.step.backends import Engine, initial, lane_shardings, with_shardings
from pretrain.step.train_step import Learner, TrainState, evaluate_step, state_shapes, train_step, unboxed


class JitEngine(Engine):
    """`jax.jit` over a mesh (data, fsdp, sequence, tensor); state and batches are global arrays."""

    def __init__(self, learner: Learner, config, mesh_of: Callable):
        self.learner = learner
        self.layout = Layout(mesh_of(config.mesh), config.mesh.rules)
        self.layout.check("heads", config.model.heads, "config.model.heads")
        self.mesh = self.layout.mesh
        self._axes = {name: feature.axes for name, feature in learner.features(1, config.data.length).items()}
        self._weights, self.frozen = self._all_but_carried(), {}
        frozen = self.layout.parameters(learner.frozen)
        self._frozen = with_shardings(unboxed(learner.frozen), frozen)
        self._step = Together(jax.jit(self._train, donate_argnums=0))
        carried = lane_shardings(self.layout, learner.evaluated, self.layout.batch_shards())  # as for any number
        self._evaluate = Together(jax.jit(self._score, out_shardings=(self.layout.sharding(), carried)))

    def _train(self, state, batch, frozen):
        leaves, frozen = self._leaves(len(batch["row"])), vocab_padding.strip(frozen, self._frozen)
        state, metrics = train_step(self.learner, vocab_padding.strip(state, leaves), batch, frozen)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, leaves)
        return jax.lax.with_sharding_constraint(vocab_padding.fill(state, leaves), shardings), metrics

    def _score(self, params, batch, carried, frozen):
        params, frozen = vocab_padding.strip(params, self._weights.params), vocab_padding.strip(frozen, self._frozen)
        return evaluate_step(self.learner, params, batch, carried, frozen)

    def frozen_shapes(self):
        return jax.tree.map(vocab_padding.stored, self._frozen)

    def hold(self, frozen) -> None:
        self.frozen = vocab_padding.rest(frozen, self._frozen)

    def _all_but_carried(self) -> TrainState:
        """Shape, dtype and sharding of each leaf, as `pretrain.parallel.vocab_padding` takes them."""
        shapes = state_shapes(self.learner, 1).replace(carried={})
        parameters = self.layout.parameters(self.learner.parameters)
        everywhere = self.layout.sharding()
        shardings = TrainState(
            step=everywhere,
            params=parameters,
            opt_state=self.layout.optimizer(shapes.opt_state, parameters, shapes.params),
            rng=everywhere,
            carried={},
            bad_in_row=everywhere,
            bad_total=everywhere,
        )
        return with_shardings(shapes, shardings)

    def _leaves(self, batch_size: int) -> TrainState:
        carried = recurrent_state.shapes(self.learner.model, batch_size)
        shardings = lane_shardings(self.layout, self.learner.model, batch_size)
        return self._weights.replace(carried=with_shardings(carried, shardings))

    def shapes(self, batch_size: int) -> TrainState:
        return jax.tree.map(vocab_padding.stored, self._leaves(batch_size))

    def resting_shapes(self, batch_size: int) -> TrainState:
        return jax.tree.map(vocab_padding.padded, self._leaves(batch_size))

    def init(self, seed: int, batch_size: int) -> TrainState:
        with self.scope():
            return initial(self.learner, self._leaves(batch_size), seed, batch_size)

    def put(self, batch: Mapping, size: int):
        return self.layout.put(batch, self._axes, size)

    def step(self, state: TrainState, batch):
        with self.scope():
            return self._step(state, batch, self.frozen)

    def lower_step(self, batch_size: int, length: int) -> jax.stages.Lowered:
        """The very program of `step` before it is compiled, for batches of this size; nothing is allocated."""
        state = self.resting_shapes(batch_size)
        with self.scope():
            return self._step.lower(state, self.batch_shapes(batch_size, length), self._resting_frozen())

    def evaluate(self, params, batch, carried):
        with self.scope():
            return self._evaluate(params, batch, carried, self.frozen)

    def lower_evaluation(self, batch_size: int, length: int) -> jax.stages.Lowered:
        """The very program of `evaluate` before it is compiled, for batches of this size; nothing is allocated."""
        shapes = recurrent_state.shapes(self.learner.evaluated, batch_size)
        carried = with_shardings(shapes, lane_shardings(self.layout, self.learner.evaluated, batch_size))
        params = jax.tree.map(vocab_padding.padded, self._weights.params)
        with self.scope():
            batch = self.batch_shapes(batch_size, length)
            return self._evaluate.lower(params, batch, carried, self._resting_frozen())

    @cached_property
    def checksums(self) -> checksums.Checksums:
        return checksums.OnMesh(self.mesh)

    def _resting_frozen(self):
        return jax.tree.map(vocab_padding.padded, self._frozen)

    def batch_shapes(self, batch_size: int, length: int):
        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=self.layout.batch(shape, axes))
            for name, (shape, dtype, axes) in self.learner.features(batch_size, length).items()
        }

    def scope(self):
        return self.layout.scope()

    def _start(self, model, batch_size: int):
        make = partial(recurrent_state.start, model, batch_size)
        return jax.jit(make, out_shardings=lane_shardings(self.layout, model, batch_size))()

    def restored_params(self, checkpoints, step: int):
        leaves = self._weights.params
        return vocab_padding.rest(checkpoints.restore_params(step, jax.tree.map(vocab_padding.stored, leaves)), leaves)

    def whole(self, params):
        return vocab_padding.store(params, self._weights.params)

    def saved(self, state: TrainState) -> TrainState:
        return self._converted(vocab_padding.store, state)

    def restored(self, state: TrainState) -> TrainState:
        return self._converted(vocab_padding.rest, state)

    def _converted(self, convert, state):
        leaves = self._weights
        params, opt_state = convert(state.params, leaves.params), convert(state.opt_state, leaves.opt_state)
        return state.replace(params=params, opt_state=opt_state)
