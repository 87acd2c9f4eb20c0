"""What compiles the step and keeps its state: by `jax.jit` over a mesh (`jit.py`), or by `jax.pmap` (`pmap.py`).

Both offer what the loop, evaluation and checkpoints need, so that these do not know which one runs.
"""

import abc
from collections.abc import Mapping
from contextlib import AbstractContextManager

import jax
import numpy as np

from models.layers.parameter import is_box
from pretrain.parallel import vocab_padding
from pretrain.parallel.mesh import Layout
from pretrain.step import recurrent_state
from pretrain.step.checksums import Checksums
from pretrain.step.train_step import Learner, TrainState, init_state


class Engine(abc.ABC):
    """A learner's step, compiled for the devices of `layout`. `frozen` are parameters that nothing changes."""

    learner: Learner
    layout: Layout
    frozen: Mapping
    checksums: Checksums  # what devices hold alike, to be compared

    @abc.abstractmethod
    def shapes(self, batch_size: int) -> TrainState:
        """Shape, type and sharding of every leaf of the train state in a checkpoint; nothing is allocated."""

    @abc.abstractmethod
    def resting_shapes(self, batch_size: int) -> TrainState:
        """Shape, type and sharding of every leaf of the train state between steps, where tables are padded."""

    @abc.abstractmethod
    def init(self, seed: int, batch_size: int) -> TrainState:
        """A fresh state, each device making its own part."""

    def rows(self, size: int) -> np.ndarray:
        """The places in a global batch of `size` rows that are this process's."""
        return self.layout.rows(size)

    @abc.abstractmethod
    def put(self, batch: Mapping, size: int):
        """This process's `rows` of a batch of `size`, feature -> [rows, ...], on its devices."""

    @abc.abstractmethod
    def step(self, state: TrainState, batch) -> tuple[TrainState, dict]:
        """(the state after one update, its metrics); the state that was given is used up."""

    @abc.abstractmethod
    def evaluate(self, params, batch, carried) -> tuple[dict, dict]:
        """(the sums of the objective's terms over the whole batch, what the lanes carry behind it)."""

    @abc.abstractmethod
    def scope(self) -> AbstractContextManager:
        """In it models know the mesh and the names of its axes, where there is one."""

    @abc.abstractmethod
    def frozen_shapes(self):
        """Shape, type and sharding of the parameters that nothing changes, as checkpoints hold them."""

    @abc.abstractmethod
    def hold(self, frozen) -> None:
        """Takes those parameters, restored into `frozen_shapes`; every step and evaluation reads them."""

    def start(self, batch_size: int):
        """What `batch_size` lanes carry at the start of an evaluation, {} for models without."""
        return self._start(self.learner.evaluated, batch_size)

    def forget(self, state: TrainState, batch_size: int) -> TrainState:
        """The state with lanes that carry nothing, for `batch_size` of them that go on with other text."""
        return state.replace(carried=self._start(self.learner.model, batch_size))

    @abc.abstractmethod
    def _start(self, model, batch_size: int):
        """What so many lanes of `model` carry at first."""

    @abc.abstractmethod
    def restored_params(self, checkpoints, step: int):
        """The parameters of a checkpoint, ready for `evaluate`."""

    @abc.abstractmethod
    def whole(self, params):
        """The parameters that `evaluate` takes as global arrays of their true shapes, on the mesh of the layout."""

    @abc.abstractmethod
    def saved(self, state: TrainState) -> TrainState:
        """The state as a checkpoint holds it."""

    @abc.abstractmethod
    def restored(self, state: TrainState) -> TrainState:
        """The state as steps take it, from one that was restored into `shapes`."""


def initial(learner: Learner, leaves: TrainState, seed: int, batch_size: int) -> TrainState:
    """The initial state, at rest as `leaves` say. Making it runs once, so on CPUs it is not worth optimising."""
    level = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    shardings = jax.tree.map(lambda leaf: leaf.sharding, leaves)

    def make(seed):
        return vocab_padding.fill(init_state(learner, seed, batch_size), leaves)

    return jax.jit(make, static_argnums=0, compiler_options=level, out_shardings=shardings)(seed)


def lane_shardings(layout, model, batch_size: int):
    """Where lies what lanes carry: split by lane, as the batch is."""

    def one(box):
        return layout.sharding(layout.spec("carried", box.names, box.value.shape))

    return jax.tree.map(one, recurrent_state.boxed(model, batch_size), is_leaf=is_box)


def with_shardings(shapes, shardings):
    """Shapes that say where each array lies."""
    return jax.tree.map(lambda s, d: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=d), shapes, shardings)
