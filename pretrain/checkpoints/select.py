"""Which checkpoint of a work folder is the best, the newest sound one, or meant by a word; read off its files alone."""

import math
from collections.abc import Iterator

from input_pipeline.away import passes
from input_pipeline.files import read_json
from pretrain.checkpoints import restore
from pretrain.errors import UserError
from pretrain.workdir import LOSS, Workdir


def losses(workdir: Workdir) -> dict[int, tuple[float, str]]:
    """Validation loss and measure of each checkpoint with a finite loss, their file being as it was written."""
    found = {}
    for step in workdir.steps():
        folder = workdir.checkpoint(step)
        try:
            metrics = read_json(folder / LOSS)
            loss, measure = metrics["loss"], metrics["measure"]
            whole = restore.is_whole(folder, LOSS)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if passes(error):
                raise
            continue  # not known to be best, and none the worse for going on
        if whole and isinstance(loss, float) and math.isfinite(loss):
            found[step] = loss, measure
    return found


def best(workdir: Workdir) -> int | None:
    """The step with the lowest validation loss among those measured as the newest one was."""
    known = losses(workdir)
    if not known:
        return None
    _, measure = known[max(known)]
    return min((step for step in known if known[step][1] == measure), key=known.get)


def sound(workdir: Workdir) -> Iterator[int]:
    """The steps whose last update was good, newest first."""
    return (step for step in reversed(workdir.steps()) if restore.is_sound(workdir.checkpoint(step)))


def meant(workdir: Workdir, word: str) -> int:
    """The step that "latest", "best" or a number means. Errors: UserError where there is none."""
    steps, folder = workdir.steps(), workdir.checkpoints
    if not steps:
        unfinished = workdir.being_moved()
        if unfinished:
            raise UserError(
                f"there is no checkpoint in {folder}: the run was being put aside when the process was killed; "
                f"give `pretrain train` with --fresh={unfinished} again, which finishes that and trains a new one"
            )
        raise UserError(f"there is no checkpoint in {folder}; train first, or choose another --workdir")
    if word == "latest":
        return steps[-1]
    if word == "best":
        found = best(workdir)
        if found is None:
            raise UserError(
                f"no checkpoint in {folder} has a validation loss, as those have that a run with validation "
                "data saves where it evaluates; use --step=latest"
            )
        return found
    if not word.isdecimal() or int(word) not in steps:
        words = "latest" if best(workdir) is None else "latest, best"
        raise UserError(f"there is no checkpoint '{word}'; choose one of: {', '.join(map(str, steps))}, {words}")
    return int(word)
