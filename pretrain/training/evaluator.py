"""The validations of a run while it trains: what the newest one found, and how it was measured."""

from collections.abc import Callable

from pretrain.evaluation.decoded import tasks
from pretrain.evaluation.evaluation import measure, score, scoring_pass
from pretrain.losses import selection_loss
from pretrain.training.startup import RunParts

SPLIT = "validation"


class Validation:
    """Scores the validation split of a run, where it has one (`there`), and keeps the newest loss."""

    def __init__(self, run: RunParts, say):
        """Errors: DataError or UserError for what could not be scored later."""
        self.there = SPLIT in run.corpus.splits
        self._run, self._wanted = run, run.config.evaluate
        self.forget()
        if not self.there:
            self.measure = ""
            say("there is no validation data (config.data.holdout = 0): no validation figures and no best checkpoint")
            return
        scoring_pass(run, SPLIT, batches=self._wanted.batches)
        tasks(run, SPLIT, decode=self._wanted.decode)
        self.measure = measure(run.config, run.corpus)

    def forget(self) -> None:
        """Nothing is known of any update."""
        self._update = self._loss = None

    def found(self, update: int, loss: float) -> None:
        """The newest loss is that of the parameters after `update`."""
        self._update, self._loss = update, loss

    def of(self, update: int) -> dict | None:
        """What the checkpoint of `update` keeps of its validation; None where there was none after that update."""
        return {"loss": self._loss, "measure": self.measure} if update == self._update else None

    def score(self, params, update: int, cut: Callable[[], bool]) -> tuple[dict, dict] | None:
        """The figures of `params` after `update`: those that are shown, and what is written besides.

        None where `cut` ended it before all was scored.
        """
        result = score(self._run, params, SPLIT, batches=self._wanted.batches, decode=self._wanted.decode, cut=cut)
        if result is None:
            return None
        self.found(update, selection_loss(self._run.config.objective.selects, result))
        objective = self._run.spec.objective
        names = {*objective.metric_names, *objective.decode_metrics}
        shown = {name: value for name, value in result.items() if name in names and value is not None}
        besides = {"tokens": result["tokens"]}
        if len(found := result.get("tasks", {})) > 1:
            besides |= {f"{name} of {task}": found[task][name] for task in found for name in objective.decode_metrics}
        return shown, besides
