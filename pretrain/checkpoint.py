"""Checkpoints: Orbax, asynchronous, atomic, and never trusted blindly.

One checkpoint is the train state and the position in the data. Orbax writes it beside its final name and
renames it when it is whole; then this module adds `files.json`, the size of every file, so that a file
truncated or deleted later is noticed before anything is restored from it.
"""

import json
import os
import re
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from pretrain.errors import UserError

SIZES = "files.json"


class Checkpoints:
    """The checkpoints of one work folder."""

    def __init__(self, workdir: str, options, *, read_only: bool = False):
        """`options` is `config.checkpoint`. A reader changes nothing in the folder."""
        self.folder = Path(workdir).absolute() / "checkpoints"
        policies = [checkpoint_managers.LatestN(options["keep"])]
        if options["keep_best"]:
            policies.append(
                checkpoint_managers.BestN(
                    get_metric_fn=lambda metrics: metrics["loss"],
                    reverse=True,
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        self._manager = None
        self._unsized = set()
        if read_only:
            return
        try:
            self._manager = ocp.CheckpointManager(
                self.folder,
                options=ocp.CheckpointManagerOptions(
                    best_fn=lambda metrics: metrics["loss"],  # makes Orbax write metrics down, for after a restart
                    best_mode="min",
                    preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
                    cleanup_tmp_directories=True,
                    enable_async_checkpointing=True,
                ),
            )
        except OSError as error:
            raise UserError(f"the work folder cannot be written ({error}); choose another --workdir") from error

    def steps(self) -> list[int]:
        """Steps that have a finished checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdigit() and p.is_dir())

    def save(self, step: int, state, position: int, metrics: dict | None = None) -> None:
        """Starts saving; returns once the state is copied off the devices. `metrics` has the validation `loss`."""
        self._finish_sizes()
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), data=ocp.args.JsonSave({"step": step, "position": position})
        )
        try:
            self._manager.save(step, args=args, metrics=metrics, force=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise self._cannot_save(error, step) from error
        self._unsized.add(step)

    def wait(self) -> None:
        """Returns when everything asked for is on disk."""
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._cannot_save(error) from error
        self._finish_sizes()

    def check(self) -> None:
        """Raises if a save in the background has failed."""
        try:
            self._manager.check_for_errors()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._cannot_save(error) from error

    def _cannot_save(self, error: Exception, *asked: int) -> UserError:
        finished = self.steps()
        lost = min((self._unsized | set(asked)) - set(finished), default="unknown")
        return UserError(
            f"the checkpoint of step {lost} could not be saved in {self.folder} ({_reason(error)}); checkpoints kept: "
            f"{', '.join(map(str, finished)) or 'none'}; make room or choose another --workdir, and start the same "
            "command again"
        )

    def _finish_sizes(self) -> None:
        """Writes the sizes of checkpoints that have become whole."""
        if jax.process_index() != 0:
            self._unsized.clear()
            return
        for step in sorted(self._unsized):
            folder = self.folder / str(step)
            if folder.is_dir():
                partial = folder / (SIZES + ".partial")
                partial.write_text(json.dumps(_sizes(folder)))
                os.replace(partial, folder / SIZES)
                self._unsized.discard(step)
        self._unsized &= set(self.steps()) | {max(self._unsized, default=-1)}

    def damage(self, step: int) -> str | None:
        """What is wrong with the files of a checkpoint, or None."""
        folder = self.folder / str(step)
        listed = folder / SIZES
        if not listed.is_file():
            return None
        try:
            expected = json.loads(listed.read_text())
        except ValueError:
            return f"{SIZES} is unreadable"
        actual = _sizes(folder)
        for name, size in expected.items():
            if name not in actual:
                return f"{name} is missing"
            if actual[name] != size:
                return f"{name} has {actual[name]} bytes instead of {size}"
        return None

    def restore(self, step: int, shapes):
        """(state, data) of a checkpoint: `shapes` gives shape, type and sharding of every leaf."""
        self._check(step)
        folder = self.folder / str(step)
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
            restored = reader.restore(
                folder, args=ocp.args.Composite(state=ocp.args.StandardRestore(shapes), data=ocp.args.JsonRestore())
            )
        return restored["state"], restored["data"]

    def restore_params(self, step: int, shapes):
        """The parameters alone, for evaluation and generation: optimiser state is neither read nor allocated."""
        self._check(step)
        wanted = {"params": shapes}
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            restored = reader.restore(
                self.folder / str(step) / "state",
                args=ocp.args.PyTreeRestore(
                    item=wanted,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
                    partial_restore=True,
                ),
            )
        return restored["params"]

    def find(self, which: str) -> int:
        """The step that "latest", "best" or a number means."""
        steps = self.steps()
        if not steps:
            raise UserError(f"there is no checkpoint in {self.folder}; train first, or choose another --workdir")
        if which == "latest":
            return steps[-1]
        if which == "best":
            best = self.best()
            if best is None:
                raise UserError(
                    f"no checkpoint in {self.folder} has a validation loss; use --step=latest, or make "
                    "config.checkpoint.every "
                    "a multiple of config.evaluate.every"
                )
            return best
        if not which.isdigit() or int(which) not in steps:
            raise UserError(
                f"there is no checkpoint of step {which}; there are {', '.join(map(str, steps))}, latest and best"
            )
        return int(which)

    def _check(self, step: int) -> None:
        damage = self.damage(step)
        if damage:
            raise UserError(f"checkpoint {step} is damaged: {damage}; choose another with --step")

    def restore_newest(self, shapes, report):
        """(state, data) of the newest whole checkpoint, or None; what is broken is reported and set aside."""
        for step in reversed(self.steps()):
            try:
                return self.restore(step, shapes)
            except Exception as error:
                report(
                    f"checkpoint {step} cannot be used ({_reason(error)}); it is set aside and the next older one is "
                    "tried"
                )
                self._set_aside(step)
        return None

    def _set_aside(self, step: int) -> None:
        if jax.process_index() == 0:
            aside = self.folder.parent / "broken"
            aside.mkdir(exist_ok=True)
            number = sum(1 for _ in aside.glob(f"{step}*"))
            os.replace(self.folder / str(step), aside / (f"{step}" if not number else f"{step}.{number}"))
        self._manager.reload()

    def best(self) -> int | None:
        """The step with the lowest validation loss among those that have one."""
        losses = {}
        for step in self.steps():
            path = self.folder / str(step) / "metrics" / "metrics"
            if path.is_file():
                losses[step] = json.loads(path.read_text())["loss"]
        return min(losses, key=losses.get) if losses else None

    def close(self) -> None:
        if self._manager:
            self._manager.close()


def _reason(error: Exception) -> str:
    """The cause of an error in few words; TensorStore buries the operating system's code in a long message."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    if code:
        return os.strerror(int(code[1]))
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _sizes(folder: Path) -> dict[str, int]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith(SIZES))
    return {str(p.relative_to(folder)): p.stat().st_size for p in files}
