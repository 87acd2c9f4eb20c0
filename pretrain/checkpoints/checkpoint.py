"""The checkpoints of a work folder, as whoever reads them finds them: never trusted blindly, and left as they are.

A training beside may save some and delete others meanwhile; `manager` has those of a run that trains.
"""

from collections.abc import Callable
from typing import TypeVar

from input_pipeline.remote import at
from pretrain import config as configs
from pretrain.checkpoints import params_only, restore, select
from pretrain.distributed.consensus import on_all_hosts, on_host0
from pretrain.errors import UserError
from pretrain.workdir import POSITION, Workdir

Result = TypeVar("Result")
OTHER = "choose another with --step"
TRIES = 3  # of reading checkpoints that a training beside deletes meanwhile


class Checkpoints:
    """The checkpoints of one work folder."""

    def __init__(self, workdir: str):
        self.workdir = Workdir(at(workdir).absolute())
        self.folder = self.workdir.checkpoints

    def _unreadable(self, why: str) -> str:
        return f"the checkpoints in {self.folder} cannot be read ({why}); make them readable"

    def steps(self) -> list[int]:
        """Steps that have a finished checkpoint, oldest first."""
        return self.workdir.steps()

    def trained(self) -> list[int]:
        """The steps that can be gone on from: all but one of weights alone."""
        return params_only.trained(self.workdir)

    def losses(self) -> dict[int, tuple[float, str]]:
        """`which.losses` of this folder."""
        return select.losses(self.workdir)

    def best(self) -> int | None:
        """`which.best` of this folder."""
        return select.best(self.workdir)

    def measures(self) -> list[str]:
        """How the losses of the checkpoints that have one were measured, oldest first, as process 0 finds it."""
        return on_host0(lambda: [measure for _, measure in self.losses().values()])

    def loss(self, step: int, measure: str) -> float | None:
        """The validation loss of one checkpoint, as process 0 finds it; None where it has none measured like that."""

        def found() -> float | None:
            loss, measured = self.losses().get(step, (None, None))
            return loss if measured == measure else None

        return on_host0(found)

    def sound(self, before: int) -> int | None:
        """The newest sound step before an update, as process 0 finds it.

        Of the last update that was good it is not known: its own loss is that of the parameters before it.
        """

        def found() -> int | None:
            return next((step for step in select.sound(self.workdir) if step < before), None)

        return on_host0(found)

    def find(self, word: str) -> int:
        """The step that "latest", "best" or a number means, as process 0 finds it."""
        return on_host0(lambda: select.meant(self.workdir, word))

    def read(self, word: str, step: int, what: Callable[[int], Result]) -> tuple[int, Result]:
        """(step, `what(step)`) of the checkpoint that `word` was found to mean.

        A training beside may have deleted it meanwhile, or one before it that `what` reads too; then it is the one that
        "latest" or "best" means now, `TRIES` times at most. Errors: UserError where that was a number, or where the
        training is faster, and whatever `what` raises of checkpoints that are there.
        """
        tries = TRIES
        while True:
            there = on_host0(self.steps)
            try:
                return step, what(step)
            except UserError as error:
                tries -= 1
                left = on_host0(self.steps)
                again = step if word.isdecimal() else self.find(word)
                if step not in left and (word.isdecimal() or not tries):
                    raise UserError(
                        f"checkpoint {step} was deleted by the training of this folder while this command was reading;"
                        f" choose one of: {', '.join(map(str, left))}, latest, or keep more with config.checkpoint.keep"
                    ) from error
                if not tries or (again == step and {one for one in there if one <= step} <= set(left)):
                    raise
                step = again

    def check_made_with(self, step: int, tokenizer, config) -> None:
        """Raises UserError unless the checkpoint of `step` was made with `tokenizer` and this folder's `config`.

        The user is told of one that was saved while updates were bad. What it says of itself must be as it was written.
        """
        folder = self.workdir.checkpoint(step)
        if not on_host0(lambda: restore.is_whole(folder, POSITION)):
            raise UserError(f"checkpoint {step} is damaged: {POSITION} is not as it was written; {OTHER}")
        data = restore.read_data(folder)

        def check() -> None:
            restore.check_origin(folder, data, {"tokenizer": tokenizer.fingerprint})
            configs.check_unedited(str(self.workdir.path), config, restore.made_with(data))

        on_all_hosts(check)  # what one process alone finds, all are told
        restore.tell_unsound(folder, data)

    def check_teacher(self, step: int, teacher) -> None:
        """Raises UserError unless the checkpoint of `step` learned from `teacher`, where there is one."""
        folder = self.workdir.checkpoint(step)
        if teacher:
            data, origin = restore.read_data(folder), {"teacher": teacher.fingerprint}
            on_all_hosts(lambda: restore.check_origin(folder, data, origin))

    def restore_params(self, step: int, shapes):
        """The parameters alone, for evaluation and generation: optimiser state is neither read nor allocated."""
        folder = self.workdir.checkpoint(step)
        damage = restore.damage(folder)
        if damage:
            raise UserError(f"checkpoint {step} is damaged: {damage}; {OTHER}")
        return restore.read_state(folder, {"params": shapes})["params"]
