"""A fresh start in a work folder that holds a run: the run is put aside, whole, and can be taken up again."""

import itertools
import os
import shutil
from pathlib import Path

from pretrain import config as configs
from pretrain.errors import UserError

MOVED = ("checkpoints", "broken", "metrics")
PARTIAL = ".partial"  # ends the name of a folder that a run is still being moved into


def begun(workdir: str) -> str | None:
    """The name of a fresh start that a killed process did not finish; None where there is none."""
    for moving in sorted((Path(workdir) / "earlier").glob(f"*{PARTIAL}")):
        return moving.name.removesuffix(PARTIAL)
    return None


def fresh_start_due(workdir: str, name: str) -> bool:
    """Whether `--fresh=name` asks for a start not made yet; the same command, given again, goes on with the new run."""
    if name and (Path(name).name != name or name in (".", "..") or name.endswith(PARTIAL)):
        raise UserError(f"--fresh={name} must be the name of a folder, such as --fresh=first-attempt")
    unfinished = begun(workdir)
    if unfinished not in (None, name):
        raise UserError(
            f"{workdir} holds a run that was being put aside when the process was killed; give the command with "
            f"--fresh={unfinished} again, which finishes that"
        )
    return bool(name) and not (Path(workdir) / "earlier" / name).exists()


def start_fresh(workdir: str, name: str, config) -> None:
    """Moves the run of `workdir` into its folder earlier/`name`, and makes the work folder one of `config`.

    Killed at any moment, it is finished by the next call. The folder's lock must be held.
    """
    folder = Path(workdir)
    moving = folder / "earlier" / f"{name}{PARTIAL}"
    moving.mkdir(parents=True, exist_ok=True)
    if (folder / configs.RESOLVED).exists() and not (moving / configs.RESOLVED).exists():
        shutil.copy(folder / configs.RESOLVED, moving)  # copied: a work folder is never without a config
    for part in MOVED:
        if (folder / part).exists():
            os.replace(folder / part, _free(moving, part))
    configs.save(config, workdir)
    os.replace(moving, folder / "earlier" / name)


def _free(folder: Path, name: str) -> Path:
    """`folder`/`name`, with a number where that is there already: of a run begun between two halves of the move."""
    numbered = (folder / (f"{name}.{number}" if number else name) for number in itertools.count())
    return next(path for path in numbered if not path.exists())
