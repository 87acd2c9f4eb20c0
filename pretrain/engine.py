"""Two ways to compile the same step: `jit` over a mesh, and `pmap`.

Both offer the same few methods, so the loop, evaluation and checkpoints do not know which one runs.
"""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

from pretrain.errors import UserError, nearest
from pretrain.mesh import AXES, Layout, make_mesh
from pretrain.step import Recipe, TrainState, evaluate_step, init_memory, init_params, init_state, train_step


class JitEngine:
    """`jax.jit` over a mesh (data, fsdp, sequence, tensor); state and batches are global arrays."""

    def __init__(self, recipe: Recipe, config, devices, report: Callable[[str], None]):
        self.recipe = recipe
        self.layout = Layout(make_mesh(config.mesh, devices, report), config.mesh.rules)
        self.mesh = self.layout.mesh
        self._rules = [(name, axes or None) for name, axes in self.layout.rules.items()]
        self._step = jax.jit(partial(train_step, recipe), donate_argnums=0)
        self._evaluate = jax.jit(partial(evaluate_step, recipe))

    def shapes(self, seed: int, batch_size: int) -> TrainState:
        """Shape, type and sharding of every leaf of the train state; nothing is allocated."""
        shapes = jax.eval_shape(partial(init_state, self.recipe, batch_size=batch_size, seed=seed))
        boxed = jax.eval_shape(partial(init_params, self.recipe.model, length=1), jax.random.key(0))
        parameters = self.layout.parameters(boxed)
        memory = jax.tree.map(lambda m: self.layout.sharding(_memory_spec(self.layout, m)), shapes.memory)
        everywhere = self.layout.sharding()
        shardings = TrainState(
            step=everywhere,
            params=parameters,
            opt_state=self.layout.optimizer(shapes.opt_state, parameters, shapes.params),
            rng=everywhere,
            memory=memory,
            bad_in_row=everywhere,
            bad_total=everywhere,
        )
        return _with_shardings(shapes, shardings)

    def init(self, seed: int, batch_size: int) -> TrainState:
        """A fresh state, each device making its own part."""
        shardings = jax.tree.map(lambda s: s.sharding, self.shapes(seed, batch_size))
        make = _compiled_init(self.recipe, batch_size, out_shardings=shardings)
        with self.scope():
            return make(seed)

    def rows(self, size: int) -> np.ndarray:
        return self.layout.rows(size)

    def check_batch(self, size: int, key: str) -> None:
        self.layout.check_batch(size, key)

    def put(self, batch: Mapping, size: int):
        return self.layout.put(batch, size)

    def step(self, state: TrainState, batch):
        with self.scope():
            return self._step(state, batch)

    def lower_step(self, features: Mapping) -> jax.stages.Lowered:
        """The very program of `step` before it is compiled, for batches of these features; nothing is allocated."""
        state = self.shapes(0, _rows_of(features))
        with self.scope():
            return self._step.lower(state, self._batch_shapes(features))

    def evaluate(self, params, batch, memory):
        with self.scope():
            return self._evaluate(params, batch, memory)

    def lower_evaluation(self, features: Mapping) -> jax.stages.Lowered:
        """The same of `evaluate`."""
        size = _rows_of(features)
        params, memory = self.shapes(0, size).params, jax.eval_shape(lambda: self.init_memory(size))
        with self.scope():
            return self._evaluate.lower(params, self._batch_shapes(features), memory)

    def _batch_shapes(self, features: Mapping):
        return {
            name: jax.ShapeDtypeStruct(feature.shape, feature.dtype, sharding=self.layout.batch(feature.shape))
            for name, feature in features.items()
        }

    @contextmanager
    def scope(self):
        """In it the mesh and the names of its axes are known to models."""
        with jax.set_mesh(self.mesh), nn.logical_axis_rules(self._rules):
            yield

    def init_memory(self, batch_size: int):
        """Empty recurrent memory for evaluating `batch_size` lanes, {} for models without."""
        return init_memory(self.recipe.evaluated, batch_size)

    def restored_params(self, checkpoints, step: int, seed: int):
        """The parameters of a checkpoint, ready for `evaluate`."""
        return checkpoints.restore_params(step, self.shapes(seed, self.layout.batch_shards()).params)

    def saved(self, state: TrainState) -> TrainState:
        """The state as a checkpoint holds it."""
        return state

    def restored(self, state: TrainState) -> TrainState:
        """The state as steps take it, from one that was restored into `shapes`."""
        return state


class PmapEngine:
    """`jax.pmap`: every device holds the whole state and a share of the batch's rows.

    State and batches carry a leading axis of this process's devices; in checkpoints they do not.
    """

    def __init__(self, recipe: Recipe, config, devices, report: Callable[[str], None]):
        for axis in ("fsdp", "sequence", "tensor"):
            if config.mesh[axis] not in (1, -1):
                raise UserError(
                    f"config.mesh.{axis} = {config.mesh[axis]} and config.train.backend = 'pmap' exclude each other; "
                    "set it to 1, or the backend to 'jit'"
                )
        self.recipe = recipe
        sizes = dict.fromkeys(AXES, 1) | {"data": -1}
        self.layout = Layout(make_mesh(sizes, devices, report), (("batch", "data"), ("length", None), ("layers", None)))
        self.local = [d for d in self.layout.mesh.devices.flat if d.process_index == jax.process_index()]
        options = {"axis_name": "data", "devices": self.local if jax.process_count() == 1 else None}
        self._step = jax.pmap(partial(train_step, recipe, axis_name="data"), donate_argnums=0, **options)

        def evaluate(params, batch, memory):
            sums, memory = evaluate_step(recipe, params, batch, memory)
            return jax.lax.psum(sums, "data"), memory

        self._evaluate = jax.pmap(evaluate, **options)

    def shapes(self, seed: int, batch_size: int) -> TrainState:
        shapes = jax.eval_shape(partial(init_state, self.recipe, batch_size=batch_size, seed=seed))
        shardings = jax.tree.map(lambda _: self.layout.sharding(), shapes)
        memory = jax.tree.map(lambda m: self.layout.sharding(_memory_spec(self.layout, m)), shapes.memory)
        return _with_shardings(shapes, shardings.replace(memory=memory))

    def init(self, seed: int, batch_size: int) -> TrainState:
        return self.restored(_compiled_init(self.recipe, batch_size)(seed))

    def rows(self, size: int) -> np.ndarray:
        return self.layout.rows(size)

    def check_batch(self, size: int, key: str) -> None:
        self.layout.check_batch(size, key)

    def put(self, batch: Mapping, size: int):
        return {name: rows.reshape(len(self.local), -1, *rows.shape[1:]) for name, rows in batch.items()}

    def step(self, state: TrainState, batch):
        state, metrics = self._step(state, batch)
        return state, jax.tree.map(_first, metrics)

    def evaluate(self, params, batch, memory):
        sums, memory = self._evaluate(params, batch, memory)
        return jax.tree.map(_first, sums), memory

    def init_memory(self, batch_size: int):
        return jax.tree.map(self._lanes, init_memory(self.recipe.evaluated, batch_size))

    def restored_params(self, checkpoints, step: int, seed: int):
        params = checkpoints.restore_params(step, self.shapes(seed, self.layout.batch_shards()).params)
        return jax.tree.map(self._copies, params)

    def saved(self, state: TrainState) -> TrainState:
        whole = jax.tree.map(lambda leaf: self._global(np.asarray(_first(leaf)), ()), state.replace(memory={}))
        lanes = jax.tree.map(lambda m: self._global(_join_lanes(np.asarray(m)), (None, "data")), state.memory)
        return whole.replace(memory=lanes)

    def _global(self, array, spec):
        sharding = self.layout.sharding(PartitionSpec(*spec))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def restored(self, state: TrainState) -> TrainState:
        whole = jax.tree.map(self._copies, state.replace(memory={}))
        return whole.replace(memory=jax.tree.map(self._lanes, state.memory))

    def _copies(self, leaf):
        """A copy for each device of this process: [devices, ...]."""
        return np.broadcast_to(np.asarray(leaf), (len(self.local), *leaf.shape))

    def _lanes(self, memory):
        """[L, B, ...] to [devices, L, B / devices, ...]."""
        memory = np.asarray(memory)
        return np.moveaxis(memory.reshape(len(memory), len(self.local), -1, *memory.shape[2:]), 1, 0)


def _compiled_init(recipe: Recipe, batch_size: int, **options):
    """The initial state as a compiled function of the seed. It runs once, so on CPUs it is not worth optimising."""
    level = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    make = partial(init_state, recipe, batch_size=batch_size)
    return jax.jit(make, static_argnums=0, compiler_options=level, **options)


def _rows_of(features: Mapping) -> int:
    return features["tokens"].shape[0]


def _first(leaf):
    """This process's first device's copy of a replicated pmap output."""
    return leaf.addressable_shards[0].data[0]


def _join_lanes(memory):
    """[devices, L, B / devices, ...] to [L, B, ...]."""
    memory = np.moveaxis(memory, 0, 1)
    return memory.reshape(len(memory), -1, *memory.shape[3:])


def _memory_spec(layout, leaf):
    """Memory is [L, B, ...]: split by lane, as the batch is."""
    return layout.spec("memory", ("layers", "batch", *(None,) * (leaf.ndim - 2)), leaf.shape)


def _with_shardings(shapes, shardings):
    return jax.tree.map(lambda s, d: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=d), shapes, shardings)


ENGINES = {"jit": JitEngine, "pmap": PmapEngine}


def make_engine(recipe: Recipe, config, devices=None, report: Callable[[str], None] = lambda message: None):
    """The engine that `config.train.backend` names; `report` is told what works, but may be slow."""
    backend = config.train.backend
    if backend not in ENGINES:
        raise UserError(f"config.train.backend is '{backend}'{nearest(backend, ENGINES)}")
    return ENGINES[backend](recipe, config, devices, report)
