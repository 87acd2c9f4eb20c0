"""A run's start: what it is asked for and what its folder holds are brought together, and the loop begins."""

import contextlib
import dataclasses
import functools

import jax

from pretrain import config as configs
from pretrain.checkpoints.fresh import fresh_start_due, holds_run, start_fresh
from pretrain.checkpoints.manager import CheckpointManager
from pretrain.checkpoints.teacher import keep, resolved
from pretrain.distributed.consensus import on_all_hosts, on_host0
from pretrain.distributed.heartbeat import Watchdog
from pretrain.distributed.init import say
from pretrain.distributed.lock import check_shared, hold_workdir
from pretrain.metrics.progress import Ledger
from pretrain.training.loop import Loop
from pretrain.training.startup import (
    build_run,
    check_goes_on,
    check_place,
    leave_config,
    teacher_of,
    tell_of_changes,
    tell_of_fresh,
    weights_to_begin_with,
)
from pretrain.workdir import Workdir


def train(config, workdir: str, fresh: str = "") -> int:
    """Trains `config` in `workdir`, from the newest checkpoint if there is one. Returns the exit code.

    `fresh` names the folder in which an earlier run is kept, so that this one begins at update 0.
    """
    ledger = Ledger()
    check_place(config, workdir, fresh)
    with contextlib.ExitStack() as held:
        held.enter_context(contextlib.closing(Watchdog(config.train.patience, ledger)))
        on_host0(lambda: held.enter_context(hold_workdir(workdir, "train", say)))
        check_shared(workdir)
        due = on_host0(lambda: fresh_start_due(workdir, fresh))
        held_run = due and holds_run(workdir)
        if fresh and not due:
            say(f"--fresh={fresh} was done before: going on with what began then (another name begins at update 0)")
        teacher = teacher_of(config, workdir, due)
        config = resolved(config, teacher)
        if not due:
            on_all_hosts(lambda: check_goes_on(config, workdir))
        weights = weights_to_begin_with(config, workdir, due)
        accepted = functools.partial(leave_config, config, workdir)
        begins = due or not on_host0(Workdir(workdir).steps)
        others = {"weights": weights, "teacher": teacher}
        run = build_run(config, workdir, say, training=True, begins=begins, **others, accepted=accepted)
        if due:
            on_host0(lambda: start_fresh(workdir, fresh, config))
            tell_of_fresh(workdir, fresh, held_run, weights is not None, say)
        if teacher:
            run = dataclasses.replace(run, teacher=keep(teacher, workdir))
        checkpoints = held.enter_context(contextlib.closing(CheckpointManager(workdir, config.checkpoint)))
        loop = Loop(run, checkpoints, ledger, workdir, say, weights)
        if jax.process_index() == 0:
            tell_of_changes(config, workdir, loop.step, say)
            if loop.step < config.train.steps:  # else nothing is made of it, and the folder's own says what was
                configs.save(config, workdir)
        return loop.run()
