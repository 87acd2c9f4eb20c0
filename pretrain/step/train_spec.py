"""The parts of a train step (model, losses, optimizer, mesh), and the operations compiled from them.

`TrainSpec.build(config)` gives a `JitSpec` or a `PmapSpec`, by `config.train.backend`. The loop, evaluation and
checkpoints use the interface below and do not know which one they have.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import optax
from flax import linen as nn
from jax.sharding import Mesh

import models
from input_pipeline import corruption
from input_pipeline.batch_spec import declared
from pretrain import losses, optimizers
from pretrain.errors import UserError, lookup
from pretrain.optimizers.freezing import Partition
from pretrain.optimizers.schedules import schedule
from pretrain.optimizers.transforms import EPOCH, roles, unfreeze_gradually
from pretrain.parallel.mesh import Layout, make_mesh, smallest_mesh
from pretrain.step.train_step import TrainState, parameters_of, unboxed


@dataclasses.dataclass(eq=False, kw_only=True)
class TrainSpec(abc.ABC):
    """Model, losses, optimizer and mesh of a config, and the compiled step.

    Parameters are described by boxes that name axes and role (`models.layers.init`).
    """

    model: nn.Module
    eval_model: nn.Module  # the model as evaluation runs it, on the same parameters
    parameters: Any  # shapes of the model's parameters, boxed
    inputs: tuple[str, ...]  # features of a batch that the model receives
    features: Callable  # (rows, length) -> {name: shape, dtype and axes of a feature}
    length: int  # config.data.length
    objective: Any  # of pretrain.losses
    partition: Partition  # which parameters are trained
    roles: Any  # of the trained parameters
    optimizer: optax.GradientTransformation  # of the trained parameters
    learning_rate: Callable  # number of good steps so far -> rate
    batch_size: int
    accumulate: int
    frozen_parameters: Any  # as `parameters`, of a teacher; {} without one
    layout: Layout
    frozen: Any = dataclasses.field(default_factory=dict)  # a teacher's arrays, set by `set_frozen`

    @staticmethod
    def build(config, devices=None, report: Callable[[str], None] = lambda message: None) -> "TrainSpec":
        """Build the spec of a config on `devices` (default: all); `report` receives warnings.

        Errors: UserError, ModelError.
        """
        return _build(config, partial(make_mesh, devices=devices, report=report))

    @staticmethod
    def build_abstract(config) -> "TrainSpec":
        """Build the spec on the smallest abstract mesh: it knows shapes and runs nothing."""
        return _build(config, smallest_mesh)

    def with_epoch(self, config, updates: float) -> "TrainSpec":
        """The spec for data of which an epoch has so many updates."""
        return dataclasses.replace(self, **_optimizer_parts(config, self.model, self.parameters, updates))

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    @property
    def param_shapes(self):
        """Shapes of the model's parameters, without boxes."""
        return unboxed(self.parameters)

    def batch_shapes(self, rows: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the features of a batch."""
        features = self.features(rows, length).items()
        return {name: jax.ShapeDtypeStruct(feature.shape, feature.dtype) for name, feature in features}

    def parts(self, rows: int) -> int:
        """Parts of a batch of `rows` rows: as few as keep them no larger than those of a full batch."""
        if self.accumulate == 1 or rows >= self.batch_size:
            return self.accumulate
        fewest, shards = -(-rows * self.accumulate // self.batch_size), self.layout.batch_shards()
        return next(parts for parts in range(fewest, rows + 1) if rows % (parts * shards) == 0)

    @classmethod
    @abc.abstractmethod
    def mesh_and_rules(cls, config) -> tuple[Mapping[str, int], tuple]:
        """(sizes of the mesh axes, logical axis -> mesh axes), as `config.mesh` and `config.mesh.rules`."""

    @abc.abstractmethod
    def checkpoint_shapes(self, batch_size: int) -> TrainState:
        """Shape, dtype and sharding of every leaf of the train state in a checkpoint."""

    @abc.abstractmethod
    def padded_shapes(self, batch_size: int) -> TrainState:
        """Shape, dtype and sharding of every leaf between steps, when vocabularies are padded."""

    @abc.abstractmethod
    def init(self, seed: int, batch_size: int) -> TrainState:
        """The state at step 0; each device makes its own part."""

    @abc.abstractmethod
    def put(self, batch: Mapping, size: int):
        """This process's rows (`layout.rows`) of a batch of `size`, feature -> [rows, ...], on its devices."""

    @abc.abstractmethod
    def train_step(self, state: TrainState, batch) -> tuple[TrainState, dict]:
        """(state after one update, metrics); the state passed in is donated."""

    @abc.abstractmethod
    def eval_step(self, params, batch, carried) -> tuple[dict, dict]:
        """({"sums", "counts", "read", "outputs"} of the whole batch, recurrent state), as `evaluate_step`."""

    @abc.abstractmethod
    def init_recurrent_state(self, model, batch_size: int):
        """The empty recurrent state of `model` or `eval_model`; {} for models without."""

    @abc.abstractmethod
    def scope(self) -> AbstractContextManager:
        """Context in which models know the mesh and its logical axes."""

    @abc.abstractmethod
    def frozen_shapes(self):
        """Shape, dtype and sharding of a teacher's parameters in a checkpoint."""

    @abc.abstractmethod
    def set_frozen(self, frozen) -> None:
        """Set a teacher's parameters, restored into `frozen_shapes`; every step reads them."""

    @abc.abstractmethod
    def restore_params(self, checkpoints, step: int):
        """The parameters of a checkpoint, ready for `eval_step`."""

    @abc.abstractmethod
    def to_global(self, params):
        """The parameters of `eval_step` as global arrays of their true shapes."""

    @abc.abstractmethod
    def to_checkpoint(self, state: TrainState) -> TrainState:
        """The state as a checkpoint holds it."""

    @abc.abstractmethod
    def from_checkpoint(self, state: TrainState) -> TrainState:
        """The state as steps take it, from one restored into `checkpoint_shapes`."""

    @abc.abstractmethod
    def map_devices(self, function: Callable, leaves: list[jax.Array]) -> Callable:
        """Compile `function`: each device's parts of `leaves` -> a vector. The result has one row a device."""

    @abc.abstractmethod
    def part_of_device(self, leaf: jax.Array) -> dict:
        """Which part of an array each device holds: equal parts are replicas."""


def _build(config, make_mesh: Callable) -> TrainSpec:
    from pretrain.step.jit import JitSpec  # late: both are subclasses
    from pretrain.step.pmap import PmapSpec

    # Shapes of parameters, optimizer and batches come from this one model: nothing is built twice.
    head = losses.task(config.objective)
    model = models.build(config.model.to_dict(), head)
    parameters = parameters_of(model)
    # Without a tokenizer: only shapes of features are needed.
    task = corruption.build(config.objective.to_dict())
    features = partial(declared, task, layout=config.data.layout)
    objective = losses.build(config, model)
    parts = {
        "model": model,
        "eval_model": _eval_model(config.model, config.evaluate.model, model, parameters),
        "parameters": parameters,
        "inputs": _inputs(model, {*features(1, config.data.length), *objective.derived_inputs}, config.data.layout),
        "features": features,
        "length": config.data.length,
        "objective": objective,
        **_optimizer_parts(config, model, parameters),
        "learning_rate": schedule(config.schedule, config.train.steps),
        "batch_size": config.train.batch_size,
        "accumulate": config.train.accumulate,
        "frozen_parameters": {} if objective.teacher is None else parameters_of(objective.teacher),
    }
    backend = lookup("config.train.backend", config.train.backend, {"jit": JitSpec, "pmap": PmapSpec})
    sizes, rules = backend.mesh_and_rules(config)
    return backend(**parts, layout=Layout(make_mesh(sizes), rules))


def _optimizer_parts(config, model, parameters, epoch: float = 1.0) -> dict:
    """Fields of a spec that say what is trained, and how; `epoch` is the number of updates in one."""
    options = config.optimizer
    partition = Partition.build(options.frozen, parameters, model.frozen_params)
    # The mix would stay the plain mean of all layers, and nothing would show it.
    if model.mixes and "scalar_mix/weights" in partition.frozen:
        raise UserError("config.optimizer.frozen: freezes the weights of model.mix. Add '!scalar_mix'.")
    every = epoch if options.unfreeze == EPOCH else options.unfreeze
    trained = unfreeze_gradually(partition.trained(roles(parameters, model)), every)
    optimizer = optimizers.build(options, config.schedule, config.train.steps, trained)
    return {"partition": partition, "roles": trained, "optimizer": optimizer}


def _inputs(model, features: set[str], layout: str) -> tuple[str, ...]:
    """The features that the model takes, of those that a batch has.

    Without packing a row is one document with its padding last, so a causal model needs no segments, and kernels
    without segments, such as cuDNN's, can run it.
    """
    unneeded = {"segments"} if model.causal and layout not in ("packed", "packed_examples") else set()
    return tuple(name for name in model.inputs if name in features - unneeded)


def _eval_model(section, changes, model, parameters):
    """The model with the fields of `config.evaluate.model`, on the same parameters."""
    if not changes:
        return model
    changed = models.build(section.to_dict() | changes.to_dict(), model.task)
    # Boxes compare axis names and roles, not only shapes.
    if parameters_of(changed) != parameters:
        raise UserError(
            f"config.evaluate.model ({', '.join(changes)}) changes trained parameters. Change others, such as memory."
        )
    return changed
