"""The engine that a config names (`backends`), on the devices that are there or on none."""

from collections.abc import Callable
from functools import partial

from pretrain.errors import UserError, nearest
from pretrain.parallel.mesh import make_mesh, smallest_mesh
from pretrain.step.backends import Engine
from pretrain.step.backends.jit import JitEngine
from pretrain.step.backends.pmap import PmapEngine
from pretrain.step.train_step import Learner

ENGINES = {"jit": JitEngine, "pmap": PmapEngine}


def make_engine(learner: Learner, config, devices=None, report: Callable[[str], None] = lambda message: None) -> Engine:
    """The engine that `config.train.backend` names; `report` is told what works, but may be slow."""
    return _engine(learner, config, partial(make_mesh, devices=devices, report=report))


def absent_engine(learner: Learner, config) -> Engine:
    """The engine on as few devices as it fits, none of which is there: it knows shapes, and runs nothing."""
    return _engine(learner, config, smallest_mesh)


def _engine(learner: Learner, config, mesh_of: Callable) -> Engine:
    backend = config.train.backend
    if backend not in ENGINES:
        raise UserError(f"config.train.backend is '{backend}'{nearest(backend, ENGINES)}")
    return ENGINES[backend](learner, config, mesh_of)
