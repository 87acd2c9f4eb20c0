"""The checkpoints of a run that trains: saved by Orbax, asynchronous and atomic; never thrown away.

One checkpoint is the train state and the position in the data. Orbax writes it beside its final name and renames it
when it is whole; just before, `record` notes every file's bytes and checksum. What is set aside later, and when a run
stops instead, is `restore_newest`'s; what is deleted is `_delete_old`'s alone, by step and loss and never by the clock.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from input_pipeline import away
from input_pipeline.away import passes
from pretrain import aside
from pretrain.checkpoints import integrity, params_only, paths, remote, restore, select, uncounted
from pretrain.checkpoints.checkpoint import Checkpoints
from pretrain.distributed.consensus import on_host0
from pretrain.errors import FaultError, UserError, reason
from pretrain.workdir import ANEW, DATA, LOSS, METRICS, POSITION, STATE, gone, write

TROUBLE = (OSError, ValueError, RuntimeError)  # of saving to a disk, however Orbax and TensorStore put it
SAVING = 3600  # seconds that a save may take


class CheckpointManager(Checkpoints):
    """The checkpoints of one work folder, in which a run saves more and deletes old ones.

    A save is begun by `save`. When `wait` or `check` looks at it, it is still being written, or whole, so that those
    that it replaces may go, or it has failed. Where the folder was away it is then owed, and made again of whatever
    update the run has come to.
    """

    def __init__(self, workdir: str, options):
        """`options` is `config.checkpoint`. What a killed process was writing or deleting is removed."""
        super().__init__(workdir)
        self.options = options
        self._trouble = Exception if self.workdir.remote else TROUBLE  # a store's package raises its own libraries'
        self._done = set()  # steps that need no saving: restored or saved by this run, alike in every process
        self.whole = 0  # the newest step that is known to have a whole checkpoint, in process 0
        self._saving = None  # the step whose save was begun last, until it is seen to be whole
        self._away, self._pause = None, away.PAUSE  # since when saves fail; how long to leave the folder alone
        self._owed, self._next = False, 0.0  # whether a save is to be made again, and when at the earliest
        on_host0(self._clear)
        self._cleaner, self._cleaning = ThreadPoolExecutor(1), None
        paths.answer_truly()
        uncounted.nothing_is_counted()
        self._writer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                **{
                    STATE: ocp.StandardCheckpointHandler(),
                    DATA: ocp.JsonCheckpointHandler(filename=Path(POSITION).name),
                    METRICS: ocp.JsonCheckpointHandler(filename=Path(LOSS).name),
                },
                **remote.of_items(self.workdir),
            ),
            async_options=ocp.AsyncOptions(timeout_secs=SAVING, post_finalization_callback=self._record),
            **remote.of_writer(self.workdir),
        )

    def _clear(self) -> None:
        """Makes the folder, sees that it can be written, and removes what a killed process was writing or deleting."""
        self.workdir.try_out()
        self._clear_unfinished()

    def _clear_unfinished(self) -> None:
        """Removes what was being written or deleted and would be in the way. Errors: OSError of one that is away."""
        for path in self.workdir.unfinished():
            self._discard(path)

    def _discard(self, path: Path) -> None:
        """Deletes a folder. It is renamed first: never half a checkpoint; what cannot go is left to a later start.

        On a network file system a file that another process has open stays, and its folder with it.
        Errors: OSError of a folder that is away.
        """
        try:
            self.workdir.discard(path)
        except OSError as error:
            if passes(error):
                raise

    def save(self, step: int, state, position: int, metrics: dict | None = None, origin=None, bad: int = 0) -> None:
        """Starts saving; returns once the state is copied off the devices.

        `metrics` has the validation `loss` and `measure`, how it was measured; `origin` names the
        tokenizer and the text that `position` is one in, and has the config; `bad` is how many updates had no finite
        loss or gradient since one had. A step that is saved, or being saved, is not saved again.
        """
        if step in self._done:
            return
        self.wait()
        data = {"step": step, "position": position, restore.BEFORE: self.whole} | (origin or {})
        data |= {restore.BAD: bad} if bad else {}
        items = {
            STATE: ocp.args.StandardSave(state, save_args=params_only.pieces(state)),
            DATA: ocp.args.JsonSave(data),
        }
        if metrics:
            items[METRICS] = ocp.args.JsonSave(metrics)
        again, self._saving, self._owed = self._owed, step, False
        self._check_there()
        try:
            if again:
                with away.hurry():  # who calls this waits, and comes again
                    self._clear_unfinished()
            self._writer.save(str(self.workdir.checkpoint(step)), args=ocp.args.Composite(**items))
        except self._trouble as error:
            self._failed(error)
            return
        self._done.add(step)

    def _check_there(self) -> None:
        """Raises UserError where the work folder is gone: Orbax would make another, with this checkpoint alone."""
        try:
            if not self.workdir.remote:
                self.workdir.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(gone(self.workdir.path)) from None
        except OSError:  # which saving finds too
            pass

    def _record(self) -> None:
        """Called in process 0 when all files are written, before the checkpoint gets its name."""
        integrity.write(self.workdir.unnamed(self._saving))

    def wait(self, again: Callable[[], None] | None = None) -> None:
        """Returns when everything asked for is on disk, or is owed; what is owed `again` saves, if it is given."""
        try:
            self._writer.wait_until_finished()
        except self._trouble as error:
            self._failed(error)
        self._settle()
        self._cleaned()
        while self._owed and again:
            time.sleep(self._pause)
            again()
            self.wait()

    def check(self) -> None:
        """Raises if a save in the background has failed for good."""
        try:
            self._writer.check_for_errors()
        except self._trouble as error:
            self._failed(error)
        self._settle()

    def owes(self) -> bool:
        """Whether a save has failed because the folder was away, and may be tried again now, of whatever step."""
        return self._owed and time.monotonic() >= self._next

    def _failed(self, error: Exception) -> None:
        """A save has failed: raises, unless it is owed from now on, because the folder may come back.

        Of several processes the others wait for one that has failed, so that all begin again at the newest checkpoint.
        """
        step, many, now = self._saving, jax.process_count() > 1, time.monotonic()
        late = isinstance(error, TimeoutError) or "DEADLINE_EXCEEDED" in str(error)
        if many and (late or passes(error)):
            raise FaultError(
                f"the checkpoint of step {step} could not be saved in {self.folder} ("
                f"{'not all processes came to it in time' if late else reason(error)}); start the same command again"
            ) from error
        if not many:
            self._let_end()
            with contextlib.suppress(OSError), away.hurry():
                if step is None or self.workdir.finished(step):
                    return  # it is whole: what failed are Orbax's own notes beside it
        if not passes(error):
            raise self._cannot_save(error) from error
        if self._away is not None and now - self._away > away.PATIENCE:
            raise FaultError(
                f"no checkpoint could be saved in {self.folder} for {away.PATIENCE:.0f} s ({reason(error)}); start "
                "the same command again once it answers"
            ) from error
        if self._away is None:
            self._away, self._pause = now, away.PAUSE
            print(
                f"the checkpoint of step {step} could not be saved ({reason(error)}); trying again for up to "
                f"{away.PATIENCE:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        else:
            self._pause = min(2 * self._pause, away.LONGEST)
        self._done.discard(step)
        self._owed, self._saving, self._next = True, None, now + self._pause

    def _let_end(self) -> None:
        """Returns when nothing of a save that has failed is written any more.

        Its threads fail each alone, some because another has; Orbax raises of one each time that it is asked.
        """
        while True:
            try:
                self._writer.wait_until_finished()
                return
            except self._trouble:
                continue

    def _cannot_save(self, error: Exception) -> UserError:
        kept = ", ".join(map(str, self.steps())) or "none"
        return UserError(
            f"the checkpoint of step {self._saving} could not be saved in {self.folder} ({reason(error)}); checkpoints "
            f"kept: {kept}; make room or choose another --workdir, and start the same command again"
        )

    def _settle(self) -> None:
        """Once the checkpoint that was being saved is whole, those that it replaces may go."""
        if self._saving is None or jax.process_index():
            return
        if away.persistently(lambda: self.workdir.finished(self._saving)):
            self._cleaned()
            self.whole, self._saving, self._away = self._saving, None, None
            self._cleaning = self._cleaner.submit(self._delete_old)

    def _cleaned(self) -> None:
        """Waits until old checkpoints are deleted."""
        if self._cleaning:
            self._cleaning.result()

    def _delete_old(self) -> None:
        """Leaves the newest, by step, and `best`; while updates are bad also the newest sound two.

        Imported weights, with which the run began, are none of them, and stay. No run ends for want of it.
        """
        with contextlib.suppress(OSError):
            steps = self.trained()
            if not steps:  # for a moment, to who asks a server
                return
            kept = {*steps[-self.options["keep"] :]}
            if not restore.is_sound(self.workdir.checkpoint(steps[-1])):
                kept |= {*islice(select.sound(self.workdir), 2)}
            if self.options["keep_best"]:
                kept |= {self.best()}
            for step in set(steps) - kept:
                self._discard(self.workdir.checkpoint(step))

    def score(self, step: int, metrics: dict, report: Callable[[str], None], room: bool = True) -> None:
        """Gives a saved checkpoint the `metrics` that it lacks, as of `save`; all processes call it alike.

        One that cannot take them stays without, and `report` hears of it. With `room` those that need not be kept any
        longer are deleted.
        """

        def add() -> str:
            folder = self.workdir.checkpoint(step)
            try:
                (folder / LOSS).parent.mkdir(exist_ok=True)
                write(folder / LOSS, json.dumps(metrics).encode())
                integrity.renew(folder, LOSS)
            except OSError as error:
                if passes(error):
                    raise
                return reason(error)
            if room:
                self._cleaned()
                self._cleaning = self._cleaner.submit(self._delete_old)
            return ""

        if why := on_host0(add):
            report(f"checkpoint {step} cannot be given its validation loss ({why}), and does not count as the best")

    def restore_newest(self, shapes, report, origin: dict[str, str] | None = None):
        """(state, data) of the newest checkpoint that is not proven damaged, or None where there is none of training.

        Newer ones, which are damaged, are reported and set aside, once it is certain that this one can be gone on from.
        Nothing is set aside where there is any other trouble, or where no checkpoint is left: UserError. `shapes` gives
        shape, type and sharding of every leaf; `origin` the tokenizer and the text to go on with, which must be those
        of the checkpoint.
        """
        steps = on_host0(self.trained)
        damaged = {}
        for step in reversed(steps):
            damage = restore.damage(self.workdir.checkpoint(step))
            if damage is None:
                break
            damaged[step] = damage
        if len(damaged) == len(steps):
            if not steps:
                self._done = set(on_host0(self.steps))
                return None
            raise UserError(
                f"no checkpoint in {self.folder} can be used ({'; '.join(f'{s}: {d}' for s, d in damaged.items())}); "
                f"nothing was changed: bring their files back, or {ANEW}"
            )
        folder = self.workdir.checkpoint(step)
        data = restore.read_data(folder)
        restore.check_origin(folder, data, origin or {})
        state = restore.read_state(folder, vars(shapes))
        on_host0(lambda: self._adopt(step, damaged))
        for broken, damage in damaged.items():
            aside_in = f"{self.workdir.broken.name}/"
            report(
                f"checkpoint {broken} cannot be used ({damage}); it is set aside in {aside_in} and an older one used"
            )
        self._done, self.whole = {n for n in steps if n <= step}, step
        return shapes.replace(**state), data

    def _adopt(self, step: int, damaged) -> None:
        """Sets damaged checkpoints aside; completes the record of a whole one that has none."""
        for broken in damaged:
            self.workdir.broken.mkdir(exist_ok=True)
            aside.move(self.workdir.checkpoint(broken), aside.free(self.workdir.broken / str(broken)))
        if integrity.read(self.workdir.checkpoint(step)) is None:
            integrity.write(self.workdir.checkpoint(step))

    def close(self) -> None:
        """Lets what has begun end. A failure is not raised here: `wait` would have, where the run went well."""
        with contextlib.suppress(self._trouble):
            self._writer.close()
        self._cleaner.shutdown()
