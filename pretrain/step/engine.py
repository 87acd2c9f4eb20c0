"""Two ways to compile the same step: `jit` over a mesh, and `pmap`.

Both offer what the loop, evaluation and checkpoints need, so that these do not know which one runs. The programs of a
mesh can also be lowered for devices that are not there, which pmap's cannot.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property, partial

import jax
import numpy as np
from jax.sharding import PartitionSpec

from pretrain.errors import UserError, nearest
from pretrain.parallel import at_rest
from pretrain.parallel.mesh import AXES, Layout, make_mesh, smallest_mesh
from pretrain.step import lanes, replicas
from pretrain.step.lanes import start
from pretrain.step.step import Learner, TrainState, evaluate_step, init_state, state_shapes, train_step, unboxed


class JitEngine:
    """`jax.jit` over a mesh (data, fsdp, sequence, tensor); state and batches are global arrays."""

    def __init__(self, learner: Learner, config, mesh_of: Callable):
        self.learner = learner
        self.layout = Layout(mesh_of(config.mesh), config.mesh.rules)
        self.layout.check("heads", config.model.heads, "config.model.heads")
        self.mesh = self.layout.mesh
        self._axes = {name: feature.axes for name, feature in learner.features(1, config.data.length).items()}
        self._weights, self.frozen = self._all_but_carried(), {}
        frozen = self.layout.parameters(learner.frozen)
        self._frozen = _with_shardings(unboxed(learner.frozen), frozen)
        self._step = jax.jit(self._train, donate_argnums=0)
        carried = _lane_shardings(self.layout, learner.evaluated, self.layout.batch_shards())  # as for any number
        self._evaluate = jax.jit(self._score, out_shardings=(self.layout.sharding(), carried))

    def _train(self, state, batch, frozen):
        leaves, frozen = self._leaves(len(batch["row"])), at_rest.strip(frozen, self._frozen)
        state, metrics = train_step(self.learner, at_rest.strip(state, leaves), batch, frozen)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, leaves)
        return jax.lax.with_sharding_constraint(at_rest.fill(state, leaves), shardings), metrics

    def _score(self, params, batch, carried, frozen):
        params, frozen = at_rest.strip(params, self._weights.params), at_rest.strip(frozen, self._frozen)
        return evaluate_step(self.learner, params, batch, carried, frozen)

    def frozen_shapes(self):
        """Shape, type and sharding of the parameters that nothing changes, as checkpoints hold them."""
        return jax.tree.map(at_rest.stored, self._frozen)

    def hold(self, frozen) -> None:
        """Takes those parameters, restored into `frozen_shapes`; every step and evaluation reads them."""
        self.frozen = at_rest.rest(frozen, self._frozen)

    def _all_but_carried(self) -> TrainState:
        """Shape, type and sharding of every leaf of the train state, as `pretrain.parallel.at_rest` takes them."""
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
        return _with_shardings(shapes, shardings)

    def _leaves(self, batch_size: int) -> TrainState:
        carried = jax.eval_shape(partial(start, self.learner.model, batch_size))
        shardings = _lane_shardings(self.layout, self.learner.model, batch_size)
        return self._weights.replace(carried=_with_shardings(carried, shardings))

    def shapes(self, seed: int, batch_size: int) -> TrainState:
        """Shape, type and sharding of every leaf of the train state in a checkpoint; nothing is allocated."""
        return jax.tree.map(at_rest.stored, self._leaves(batch_size))

    def resting_shapes(self, seed: int, batch_size: int) -> TrainState:
        """The same of the state between steps."""
        return jax.tree.map(at_rest.padded, self._leaves(batch_size))

    def init(self, seed: int, batch_size: int) -> TrainState:
        """A fresh state, each device making its own part."""
        with self.scope():
            return _initial(self.learner, self._leaves(batch_size), seed, batch_size)

    def rows(self, size: int) -> np.ndarray:
        return self.layout.rows(size)

    def put(self, batch: Mapping, size: int):
        return self.layout.put(batch, self._axes, size)

    def step(self, state: TrainState, batch):
        with self.scope():
            return self._step(state, batch, self.frozen)

    def lower_step(self, batch_size: int, length: int) -> jax.stages.Lowered:
        """The very program of `step` before it is compiled, for batches of this size; nothing is allocated."""
        state = self.resting_shapes(0, batch_size)
        with self.scope():
            return self._step.lower(state, self.batch_shapes(batch_size, length), self._resting_frozen())

    def evaluate(self, params, batch, carried):
        with self.scope():
            return self._evaluate(params, batch, carried, self.frozen)

    def lower_evaluation(self, batch_size: int, length: int) -> jax.stages.Lowered:
        """The same of `evaluate`."""
        shapes = jax.eval_shape(partial(start, self.learner.evaluated, batch_size))
        carried = _with_shardings(shapes, _lane_shardings(self.layout, self.learner.evaluated, batch_size))
        params = jax.tree.map(at_rest.padded, self._weights.params)
        with self.scope():
            batch = self.batch_shapes(batch_size, length)
            return self._evaluate.lower(params, batch, carried, self._resting_frozen())

    @cached_property
    def replicas(self) -> replicas.Replicas:
        return replicas.OnMesh(self.mesh)

    def _resting_frozen(self):
        return jax.tree.map(at_rest.padded, self._frozen)

    def batch_shapes(self, batch_size: int, length: int):
        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=self.layout.batch(shape, axes))
            for name, (shape, dtype, axes) in self.learner.features(batch_size, length).items()
        }

    def scope(self):
        """In it the mesh and the names of its axes are known to models."""
        return self.layout.scope()

    def start(self, batch_size: int):
        """What `batch_size` lanes carry at the start of an evaluation, {} for models without."""
        return self._start(self.learner.evaluated, batch_size)

    def forget(self, state: TrainState, batch_size: int) -> TrainState:
        """The state with lanes that carry nothing, for `batch_size` of them that go on with other text."""
        return state.replace(carried=self._start(self.learner.model, batch_size))

    def _start(self, model, batch_size: int):
        make = partial(start, model, batch_size)
        return jax.jit(make, out_shardings=_lane_shardings(self.layout, model, batch_size))()

    def restored_params(self, checkpoints, step: int, seed: int):
        """The parameters of a checkpoint, ready for `evaluate`."""
        leaves = self._weights.params
        return at_rest.rest(checkpoints.restore_params(step, jax.tree.map(at_rest.stored, leaves)), leaves)

    def whole(self, params):
        """The parameters that `evaluate` takes as global arrays of their true shapes, on the mesh of the layout."""
        return at_rest.store(params, self._weights.params)

    def saved(self, state: TrainState) -> TrainState:
        """The state as a checkpoint holds it."""
        return self._converted(at_rest.store, state)

    def restored(self, state: TrainState) -> TrainState:
        """The state as steps take it, from one that was restored into `shapes`."""
        return self._converted(at_rest.rest, state)

    def _converted(self, convert, state):
        leaves = self._weights
        params, opt_state = convert(state.params, leaves.params), convert(state.opt_state, leaves.opt_state)
        return state.replace(params=params, opt_state=opt_state)


class PmapEngine:
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
        return self._pmap(partial(train_step, self.learner, axis_name="data"), donate_argnums=0)

    @cached_property
    def _evaluate(self):
        def evaluate(params, batch, carried, frozen):
            sums, carried = evaluate_step(self.learner, params, batch, carried, frozen)
            return jax.lax.psum(sums, "data"), carried

        return self._pmap(evaluate)

    @cached_property
    def replicas(self) -> replicas.Replicas:
        return replicas.Whole(self._pmap)

    @cached_property
    def _place(self):
        return self._pmap(lambda tree: tree)

    @cached_property
    def _lane_axes(self):
        return lanes.axes(self.learner.model)

    def _pmap(self, function: Callable, **options):
        devices = self.local if jax.process_count() == 1 else None
        return jax.pmap(function, axis_name="data", devices=devices, **options)

    def shapes(self, seed: int, batch_size: int) -> TrainState:
        shapes = state_shapes(self.learner, batch_size)
        shardings = jax.tree.map(lambda _: self.layout.sharding(), shapes)
        carried = _lane_shardings(self.layout, self.learner.model, batch_size)
        return _with_shardings(shapes, shardings.replace(carried=carried))

    resting_shapes = shapes  # nothing is split that would need padding

    def init(self, seed: int, batch_size: int) -> TrainState:
        return self.restored(_initial(self.learner, self.shapes(seed, batch_size), seed, batch_size))

    def rows(self, size: int) -> np.ndarray:
        return self.layout.rows(size)

    def scope(self):
        """Models know of no mesh: each device has rows of its own."""
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
        return _with_shardings(shapes, jax.tree.map(lambda _: self.layout.sharding(), shapes))

    def hold(self, frozen) -> None:
        self.frozen = self._place(jax.tree.map(self._copies, frozen)) if frozen else {}

    def start(self, batch_size: int):
        return self._start(self.learner.evaluated, batch_size)

    def forget(self, state: TrainState, batch_size: int) -> TrainState:
        return state.replace(carried=self._start(self.learner.model, batch_size))

    def _start(self, model, batch_size: int):
        carried = start(model, batch_size // self.layout.batch_shards())
        return self._place(jax.tree.map(self._copies, carried)) if carried else carried

    def restored_params(self, checkpoints, step: int, seed: int):
        params = checkpoints.restore_params(step, self.shapes(seed, self.layout.batch_shards()).params)
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


def _initial(learner: Learner, leaves: TrainState, seed: int, batch_size: int) -> TrainState:
    """The initial state, at rest as `leaves` say. Making it runs once, so on CPUs it is not worth optimising."""
    level = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    shardings = jax.tree.map(lambda leaf: leaf.sharding, leaves)

    def make(seed):
        return at_rest.fill(init_state(learner, seed, batch_size), leaves)

    return jax.jit(make, static_argnums=0, compiler_options=level, out_shardings=shardings)(seed)


def _first(leaf):
    """This process's first device's copy of a replicated pmap output."""
    return leaf.addressable_shards[0].data[0]


def _lane_shardings(layout, model, batch_size: int):
    """Where lies what lanes carry: split by lane, as the batch is."""

    def one(box):
        return layout.sharding(layout.spec("carried", box.names, box.value.shape))

    return jax.tree.map(one, lanes.boxed(model, batch_size), is_leaf=lanes.is_box)


def _with_shardings(shapes, shardings):
    return jax.tree.map(lambda s, d: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=d), shapes, shardings)


ENGINES = {"jit": JitEngine, "pmap": PmapEngine}


def make_engine(learner: Learner, config, devices=None, report: Callable[[str], None] = lambda message: None):
    """The engine that `config.train.backend` names; `report` is told what works, but may be slow."""
    return _engine(learner, config, partial(make_mesh, devices=devices, report=report))


def absent_engine(learner: Learner, config):
    """The engine on as few devices as it fits, none of which is there: it knows shapes, and runs nothing."""
    return _engine(learner, config, smallest_mesh)


def _engine(learner: Learner, config, mesh_of: Callable):
    backend = config.train.backend
    if backend not in ENGINES:
        raise UserError(f"config.train.backend is '{backend}'{nearest(backend, ENGINES)}")
    return ENGINES[backend](learner, config, mesh_of)
