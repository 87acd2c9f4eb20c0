"""Saving checkpoints: asynchronous, atomic, with checksums; pruning old ones; resuming from the newest intact one.

Orbax's AsyncCheckpointer writes a checkpoint under a temporary name and renames it when it is complete. Its
CheckpointManager is not used: it cannot rank only losses that were measured alike, take a loss after the save, keep
good checkpoints while updates are bad, or verify checksums.
"""

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from input_pipeline import io
from pretrain import config as configs
from pretrain.checkpoints import integrity, params_only, restore
from pretrain.checkpoints.restore import Checkpoints
from pretrain.distributed.consensus import on_host0
from pretrain.errors import UserError
from pretrain.workdir import (
    DATA,
    FRESH_START,
    LOSS,
    METRICS,
    POSITION,
    STATE,
    Workdir,
    exists,
    free_name,
    may_be_earlier,
    move,
    write,
)

TIMEOUT = 3600  # seconds that a save may take
GOOD = 2  # checkpoints from good updates that are kept while updates are bad


class CheckpointManager(Checkpoints):
    """The checkpoints of one work folder, for the run that saves them."""

    def __init__(self, workdir: str, options):
        """`options` is `config.checkpoint`. Removes what a killed process was writing or deleting."""
        super().__init__(workdir)
        self.options = options
        self.base: restore.Base | None = None  # holds parameters that checkpoints leave out
        self.newest = 0  # newest step known to be complete, in process 0
        self._saved = set()  # steps that need no saving: restored or saved by this run
        self._saving: int | None = None  # step whose save has started and is not known to be complete
        self._pruning: Future | None = None
        self._executor = ThreadPoolExecutor(1)  # one thread, so that the last pruning ends after all others
        on_host0(self._clean)
        if str(self.folder).startswith("s3://"):
            restore.enable_s3()
        # Nothing can be renamed in a store: there a last file marks a complete checkpoint.
        temporary = {"temporary_path_class": ocp.path.atomicity.CommitFileTemporaryPath} if self.workdir.remote else {}
        items = {
            STATE: ocp.StandardCheckpointHandler(),
            DATA: ocp.JsonCheckpointHandler(filename=Path(POSITION).name),
            METRICS: ocp.JsonCheckpointHandler(filename=Path(LOSS).name),
        }
        self._writer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(**items, composite_options=ocp.CompositeOptions(**temporary)),
            async_options=ocp.AsyncOptions(timeout_secs=TIMEOUT, post_finalization_callback=self._write_record),
            **temporary,
        )

    def _clean(self) -> None:
        io.make_folder(self.folder)
        for path in self.workdir.unfinished():
            self._delete(path)

    def _delete(self, path: Path) -> None:
        """Deletes a folder; a later start deletes what is still in use, such as open files on a network disk."""
        with contextlib.suppress(OSError):
            self.workdir.discard(path)

    def save(self, step: int, state, position: int, metrics: dict | None = None, origin=None, bad: int = 0) -> None:
        """Starts saving; returns once the state is copied off the devices.

        `metrics` has the validation `loss` and how it was measured, `measure`; `origin` the fingerprints of tokenizer,
        text and teacher, and the config; `bad` counts the latest updates without a finite loss or gradient. A step that
        is saved already is not saved again.
        """
        if step in self._saved:
            return
        self.wait()
        # `newest` is set by process 0 alone, which also writes this item.
        data = {"step": step, "position": position, restore.BEFORE: self.newest} | (origin or {})
        data |= {restore.BAD: bad} if bad else {}
        if self.base:
            # The optimizer state has no part of frozen parameters: only what learns remains.
            state = state.replace(params=self.base.split(state.params)[0])
            data[restore.BASE] = self.base.notes(self.folder)
        items = {
            STATE: ocp.args.StandardSave(state, save_args=params_only.chunked_save_args(state)),
            DATA: ocp.args.JsonSave(data),
        }
        if metrics:
            items[METRICS] = ocp.args.JsonSave(metrics)
        self._saving = step
        self._writer.save(str(self.workdir.checkpoint(step)), args=ocp.args.Composite(**items))
        self._saved.add(step)

    def _write_record(self) -> None:
        """Called by Orbax in process 0 when all files are written, before the checkpoint gets its name."""
        integrity.write_record(self.workdir.unnamed(self._saving))

    def wait(self) -> None:
        """Returns once everything is on disk and old checkpoints are deleted."""
        self._writer.wait_until_finished()
        self._start_pruning()
        if self._pruning:
            self._pruning.result()

    def check(self) -> None:
        """Raises if a save in the background has failed."""
        self._writer.check_for_errors()
        self._start_pruning()

    def _start_pruning(self) -> None:
        """Starts deleting old checkpoints once the newest one is complete."""
        if self._saving is None or jax.process_index() or not self.workdir.finished(self._saving):
            return
        self.newest, self._saving = self._saving, None
        self._pruning = self._executor.submit(self._prune)

    def _prune(self) -> None:
        """Deletes all but the newest, the best, imported weights, bases of other runs, and while updates are bad the
        newest good ones.
        """
        steps = self.trained()
        keep = set(steps[-self.options["keep"] :])
        # After bad updates the way back is a good checkpoint, however old.
        if steps and not restore.is_good(self.workdir.checkpoint(steps[-1])):
            keep.update(self.good_steps()[:GOOD])
        if self.options["keep_best"]:
            keep.add(self.best())
        if exists(self.workdir.pins):
            keep.update(int(pin.name) for pin in self.workdir.pins.iterdir())
        for step in set(steps) - keep:
            self._delete(self.workdir.checkpoint(step))

    def add_metrics(self, step: int, metrics: dict, prune: bool = True) -> None:
        """Adds `metrics` to a saved checkpoint that has none; all processes call it."""

        def add() -> None:
            folder = self.workdir.checkpoint(step)
            (folder / LOSS).parent.mkdir(exist_ok=True)
            write(folder / LOSS, json.dumps(metrics).encode())
            if prune:
                self._pruning = self._executor.submit(self._prune)

        on_host0(add)

    def restore_newest(self, shapes, report: Callable[[str], None], origin: dict[str, str] | None = None):
        """(state, data) of the newest intact checkpoint; None if training saved none.

        Newer ones, proven damaged, are moved to checkpoints/broken and reported. Any other error leaves all files where
        they are. `shapes` has shape, type and sharding of each leaf; `origin` the fingerprints to continue with.
        Errors: UserError.
        """
        steps, damaged = on_host0(self.trained), {}
        for step in reversed(steps):
            damage = restore.find_damage(self.workdir.checkpoint(step))
            if damage is None:
                break
            damaged[step] = damage
        if not steps:
            self._saved = set(on_host0(self.steps))
            return None
        if len(damaged) == len(steps):
            newest, damage = next(iter(damaged.items()))
            raise UserError(
                f"{self.folder}: all checkpoints are damaged ({newest}: {damage}). Restore one, or {FRESH_START}."
            )
        folder = self.workdir.checkpoint(step)
        data = restore.read_data(folder)
        restore.check_origin(folder, data, origin or {})
        # An error, not a reason to take an older checkpoint: all of them need the same base.
        restore.check_base(folder)
        state, self.base = restore.read_state(folder, vars(shapes)), restore.Base.of(folder)
        on_host0(lambda: self._adopt(step, damaged))
        for number, damage in damaged.items():
            report(f"warning: checkpoint {number} is damaged ({damage}), moved to {self.workdir.broken.name}/")
        self._saved, self.newest = {number for number in steps if number <= step}, step
        return shapes.replace(**state), data

    def _adopt(self, step: int, damaged) -> None:
        """Moves damaged checkpoints away; adds the record to an old checkpoint without one."""
        for number in damaged:
            io.make_folder(self.workdir.broken)
            move(self.workdir.checkpoint(number), free_name(self.workdir.broken / str(number)))
        folder = self.workdir.checkpoint(step)
        if integrity.read_record(folder) is None:  # it was restored, so its files are good
            integrity.write_record(folder)

    def close(self) -> None:
        """Waits for what is being saved or deleted."""
        self.wait()
        self._executor.shutdown()
        self._writer.close()


def needs_fresh_start(workdir: str, name: str) -> bool:
    """Whether `--fresh=name` asks for a start that was not made yet; repeating the command continues the new run."""
    if name and not may_be_earlier(name):
        raise UserError(f"--fresh={name!a}: not a folder's name. Use one such as --fresh=first-attempt.")
    here = Workdir(workdir)
    unfinished = here.being_moved()
    if unfinished not in (None, name):
        raise UserError(f"--workdir={workdir}: interrupted move. Give --fresh={unfinished} again to finish it.")
    return bool(name) and not (here.earlier / name).exists()


def holds_run(workdir: str) -> bool:
    """Whether there is anything that a fresh start would move away."""
    here = Workdir(workdir)
    return any(map(exists, (here.config, *_parts_of_run(here))))


def _parts_of_run(here: Workdir) -> tuple[Path, ...]:
    return here.checkpoints, here.metrics, here.goodput, here.changes, here.teacher.path


def start_fresh(workdir: str, name: str, config) -> None:
    """Moves the run of `workdir` to earlier/`name`, and saves `config` for a new one.

    If it is killed, the next call finishes the move. The caller holds the folder's lock.
    """
    here = Workdir(workdir)
    target = here.moving(name)
    target.path.mkdir(parents=True, exist_ok=True)
    if here.config.exists() and not target.config.exists():
        write(target.config, here.config.read_bytes())  # copied, so that a work folder always has a config
    for part in _parts_of_run(here):
        if exists(part):
            move(part, free_name(target.path / part.name))
    configs.save(config, workdir)
    target.path.replace(here.earlier / name)
