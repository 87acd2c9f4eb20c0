"""`train`: from a config and a work folder to the exit code of a run."""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence

import jax

from input_pipeline import pipeline
from pretrain import config as configs
from pretrain.checkpoints.manager import CheckpointManager, holds_run, needs_fresh_start, start_fresh
from pretrain.checkpoints.teacher import copy_teacher, set_teacher_model
from pretrain.distributed.consensus import on_all_hosts, on_host0
from pretrain.distributed.heartbeat import Watchdog
from pretrain.distributed.init import print_on_host0
from pretrain.distributed.lock import check_shared, hold_workdir
from pretrain.metrics.progress import Ledger
from pretrain.metrics.wandb_run import load_wandb
from pretrain.training.loop import Loop, RewindError
from pretrain.training.startup import (
    build_run,
    check_can_continue,
    check_local_folder,
    describe_start,
    find_other_runs,
    report_changes,
    save_config,
)
from pretrain.workdir import Workdir


def train(config, workdir: str, fresh: str = "", sources=None, allowed: Sequence[str] = ()) -> int:
    """Train `config` in `workdir`, from the newest checkpoint if there is one; return the exit code.

    `fresh` names the folder to which an earlier run is moved, so that this one begins at step 0. `sources` are the data
    sources that `validate.check` returned; None: they are checked here. `allowed`: keys that a run may change when it
    continues, besides those that are free (`pretrain.changes`).
    """
    ledger = Ledger()
    check_local_folder(config, workdir, fresh)
    if config.log.wandb:
        load_wandb(config.log.wandb)  # asked for now: a missing package is no surprise after hours of tokenizing
    with contextlib.ExitStack() as stack:
        # Opened first: waiting for the lock, a store or another process can hang too.
        stack.enter_context(contextlib.closing(Watchdog(config.train.patience, ledger)))
        on_host0(lambda: stack.enter_context(hold_workdir(workdir, "train", print_on_host0)))
        check_shared(workdir)
        starts_fresh = on_host0(lambda: needs_fresh_start(workdir, fresh))
        if fresh and not starts_fresh:
            print_on_host0(f"--fresh={fresh} was done before, continuing that run")
        # Read before the new config is written into the folder.
        held_run = starts_fresh and holds_run(workdir)
        others = find_other_runs(config, workdir, starts_fresh)
        config = set_teacher_model(config, others.teacher)
        if not starts_fresh:
            on_all_hosts(lambda: check_can_continue(config, workdir, allowed))
        begins = starts_fresh or not on_host0(Workdir(workdir).steps)
        run = build_run(
            config,
            workdir,
            print_on_host0,
            training=True,
            begins=begins,
            others=others,
            prepare=functools.partial(pipeline.prepare, sources=sources),
            before_tokenizing=functools.partial(save_config, config, workdir),
        )
        print_on_host0(describe_start(run, workdir))
        if starts_fresh:
            # Only now: a config that is refused moves nothing.
            on_host0(lambda: start_fresh(workdir, fresh, config))
            earlier = Workdir(workdir).earlier / fresh
            print_on_host0(
                f"the earlier run is in {earlier}" if held_run else f"--fresh={fresh}: {workdir} held no run"
            )
        if others.teacher:
            # From here on the copy in the work folder is the teacher.
            run = dataclasses.replace(run, teacher=copy_teacher(others.teacher, workdir))
        checkpoints = stack.enter_context(contextlib.closing(CheckpointManager(workdir, config.checkpoint)))
        loop = stack.enter_context(contextlib.closing(Loop(run, checkpoints, ledger, print_on_host0, others.weights)))
        if jax.process_index() == 0:
            report_changes(config, workdir, loop.step, print_on_host0)
            if loop.step < config.train.steps:  # else the folder keeps the config of its steps
                configs.save(config, workdir)
        while True:
            try:
                return loop.run()
            except RewindError as bad:
                loop.rewind(bad.position)
