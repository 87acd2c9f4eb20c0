"""The evaluations of a run while it trains: the validation, and the named ones of `config.evaluations`."""

from collections.abc import Callable

from pretrain.errors import UserError, nearest
from pretrain.evaluation.decoded import tasks
from pretrain.evaluation.evaluation import VALIDATION, measure, score, scoring_pass, selected, split_of
from pretrain.losses import selection_loss
from pretrain.training.startup import RunParts
from pretrain.training.task_evaluator import CheckpointEvaluator, ProbeEvaluator, TaskEvaluator


class Evaluator:
    """Scores a split, if `enabled`, every so many updates; remembers the newest loss if it `selects` the best one."""

    def __init__(self, run: RunParts, name: str = VALIDATION):
        """Errors: DataError or UserError for what could not be scored later."""
        config = run.config
        self.name, self._run = name, run
        self.split, self._batches = split_of(config, name)
        options = config.evaluate if name == VALIDATION else config.evaluations[name]
        self.every, self._decode = options.every, config.evaluate.decode if name == VALIDATION else 0
        self.enabled = self.split in run.corpus.splits
        best, self._term = selected(config)
        self.selects = best == name
        self.measure = ""
        self.forget()
        if not self.enabled:
            return
        # Built early: what cannot be scored is an error now, not after hours of training.
        self.scope = scoring_pass(run, self.split, batches=self._batches).scope
        tasks(run, self.split, decode=self._decode)
        if self.selects:
            objective = run.spec.objective
            known = {*objective.reported_terms, "loss", *objective.metrics}
            if self._term not in known:
                raise UserError(f"config.checkpoint.best={config.checkpoint.best}{nearest(self._term, known)}")
            self.measure = measure(config, run.corpus)

    def forget(self) -> None:
        self.step = self._loss = None

    def is_due(self, step: int, last: bool) -> bool:
        """Whether it belongs after `step`, which is the `last` one of the run or not."""
        return self.enabled and (last or (self.every > 0 and step % self.every == 0))

    def set_loss(self, step: int, loss: float | None = None) -> None:
        """Remember that the parameters after `step` are scored, and their loss."""
        self.step, self._loss = step, loss

    def checkpoint_metrics(self, step: int) -> dict | None:
        """The loss for a checkpoint of `step`, and its measure; None without an evaluation after that step."""
        return {"loss": self._loss, "measure": self.measure} if step == self.step else None

    def score(self, params, step: int, stop: Callable[[], bool]) -> tuple[dict, dict] | None:
        """(metrics to show, those to write) of `params` after `step`; None if `stop` cut it short."""
        result = score(self._run, params, self.split, batches=self._batches, decode=self._decode, cut=stop)
        if result is None:
            return None
        objective = self._run.spec.objective
        self.set_loss(step, selection_loss(objective, self._term, result) if self.selects else None)
        names = {*objective.metric_names, *objective.decode_metrics}
        shown = {name: value for name, value in result.items() if name in names and value is not None}
        sizes = {name: result[name] for name in ("tokens", "examples") if name in result}
        row, by_task = shown | sizes, result.get("tasks", {})
        if len(by_task) > 1:
            row |= {f"{name} of {task}": by_task[task][name] for task in by_task for name in objective.decode_metrics}
        return shown, row


def build_evaluators(run: RunParts, report: Callable[[str], None]) -> list[Evaluator | CheckpointEvaluator]:
    """All evaluations of a run; one of them selects the best checkpoint.

    Errors: UserError for an unknown name in checkpoint.best, and as `Evaluator`.
    """
    config = run.config
    names = [VALIDATION, *config.evaluations]
    if (best := selected(config)[0]) not in names:
        raise UserError(f"config.checkpoint.best={config.checkpoint.best}: no evaluation {best}{nearest(best, names)}")
    kinds = {name: TaskEvaluator for name, one in config.evaluations.items() if one.task}
    kinds |= {name: ProbeEvaluator for name, one in config.evaluations.items() if one.probe}
    found = [kinds.get(name, Evaluator)(run, name) for name in names]
    if not next(one for one in found if one.selects).enabled:
        report("no validation data (config.data.holdout=0): no validation metrics and no best checkpoint")
    return found
