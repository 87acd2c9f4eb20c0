"""The evaluations of a run while it trains."""

from collections.abc import Callable

from pretrain.evaluation.decoded import tasks
from pretrain.evaluation.evaluation import measure, score, scoring_pass
from pretrain.losses import selection_loss
from pretrain.training.startup import RunParts

SPLIT = "validation"


class Evaluator:
    """Scores the validation split, if `enabled`, and remembers the newest loss."""

    def __init__(self, run: RunParts, report: Callable[[str], None]):
        """Errors: DataError or UserError for what could not be scored later."""
        self.enabled = SPLIT in run.corpus.splits
        self._run, self._options = run, run.config.evaluate
        self.measure = ""
        self.forget()
        if not self.enabled:
            report("no validation data (config.data.holdout=0): no validation metrics and no best checkpoint")
            return
        # Built early: what cannot be scored is an error now, not after hours of training.
        self.scope = scoring_pass(run, SPLIT, batches=self._options.batches).scope
        tasks(run, SPLIT, decode=self._options.decode)
        self.measure = measure(run.config, run.corpus)

    def forget(self) -> None:
        self._step = self._loss = None

    def set_loss(self, step: int, loss: float) -> None:
        """Remember a loss as that of the parameters after `step`."""
        self._step, self._loss = step, loss

    def checkpoint_metrics(self, step: int) -> dict | None:
        """The loss for a checkpoint of `step`, and its measure; None without an evaluation after that step."""
        return {"loss": self._loss, "measure": self.measure} if step == self._step else None

    def score(self, params, step: int, stop: Callable[[], bool]) -> tuple[dict, dict] | None:
        """(metrics to show, those to write) of `params` after `step`; None if `stop` cut it short."""
        options = self._options
        result = score(self._run, params, SPLIT, batches=options.batches, decode=options.decode, cut=stop)
        if result is None:
            return None
        self.set_loss(step, selection_loss(self._run.spec.objective, self._run.config.objective.selects, result))
        objective = self._run.spec.objective
        names = {*objective.metric_names, *objective.decode_metrics}
        shown = {name: value for name, value in result.items() if name in names and value is not None}
        row, by_task = (
            shown | {name: result[name] for name in ("tokens", "examples") if name in result},
            result.get("tasks", {}),
        )
        if len(by_task) > 1:
            row |= {f"{name} of {task}": by_task[task][name] for task in by_task for name in objective.decode_metrics}
        return shown, row
