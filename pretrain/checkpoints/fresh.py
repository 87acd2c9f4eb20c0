"""A fresh start in a work folder that holds a run: the run is put aside, whole, and can be taken up again."""

import os
from pathlib import Path

from input_pipeline.away import contents
from pretrain import aside
from pretrain import config as configs
from pretrain.errors import UserError, reason
from pretrain.workdir import Workdir, may_be_earlier, write


def fresh_start_due(workdir: str, name: str) -> bool:
    """Whether `--fresh=name` asks for a start not made yet; the same command, given again, goes on with the new run."""
    if name and not may_be_earlier(name):
        raise UserError(f"--fresh={ascii(name)[1:-1]} must be the name of a folder, such as --fresh=first-attempt")
    unfinished = Workdir(workdir).being_moved()
    if unfinished not in (None, name):
        raise UserError(
            f"{workdir} holds a run that was being put aside when the process was killed; give the command with "
            f"--fresh={unfinished} again, which finishes that"
        )
    return bool(name) and not (Workdir(workdir).earlier / name).exists()


def holds_run(workdir: str) -> bool:
    """Whether there is anything of a run that a fresh start puts aside."""
    here = Workdir(workdir)
    return any(map(aside.taken, (here.config, *_parts(here))))


def _parts(here: Workdir) -> tuple[Path, ...]:
    """What is moved; the config is copied."""
    return here.checkpoints, here.metrics, here.goodput, here.teacher.path


def start_fresh(workdir: str, name: str, config) -> None:
    """Moves the run of `workdir` into its folder earlier/`name`, and makes the work folder one of `config`.

    Killed at any moment, it is finished by the next call. The folder's lock must be held. Errors: UserError where a
    part cannot be moved, such as a mount point; those that were are moved back.
    """
    here = Workdir(workdir)
    kept = here.moving(name)
    begins, moved = not kept.path.exists(), []
    try:
        kept.path.mkdir(parents=True, exist_ok=True)
        if here.config.exists() and not kept.config.exists():
            write(kept.config, contents(here.config))  # a work folder is never without a config
        for part in _parts(here):
            if aside.taken(part):
                to = aside.free(kept.path / part.name)  # numbered: a run was begun between two halves of the move
                aside.move(part, to)
                moved.append((to, part))
    except OSError as error:
        for to, back in moved:
            aside.move(to, back)
        if begins and kept.path.exists():
            kept.config.unlink(missing_ok=True)
            kept.path.rmdir()
        raise UserError(
            f"--fresh={name} cannot put the run of {workdir} aside ({reason(error)}), and leaves it as it was; mend "
            "that, or choose another --workdir"
        ) from error
    configs.save(config, workdir)
    os.replace(kept.path, here.earlier / name)
