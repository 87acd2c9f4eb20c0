"""A named evaluation that asks a task without training (`pretrain.scoring`) while a run trains."""

from collections.abc import Callable

from pretrain.errors import UserError
from pretrain.evaluation.evaluation import selected
from pretrain.scoring.requests import Scorer
from pretrain.scoring.runner import Questions, Runner
from pretrain.scoring.task_table import task_named
from pretrain.training.startup import RunParts


class TaskEvaluator:
    """Asks the task of `config.evaluations.NAME` every so many updates; it never selects the best checkpoint."""

    enabled, selects, measure = True, False, ""

    def __init__(self, run: RunParts, name: str):
        """Errors: UserError and DataError for what could not be asked later."""
        self.name, options = name, run.config.evaluations[name]
        self.every, self._options, self._run = options.every, options, run
        key = f"config.evaluations.{name}"
        task = task_named(options.task, options.data, f"{key}.task")
        if selected(run.config)[0] == name:
            raise UserError(f"config.checkpoint.best={run.config.checkpoint.best}: {name} is a task. Name another.")
        if run.spec.mesh.shape["sequence"] > 1:
            raise UserError(f"{key}.task: needs config.mesh.sequence=1. Remove the evaluation.")
        self._scorer({})  # a model without likelihoods is an error now, not after hours of training
        self._questions = Questions.read(task, options.limit, options.shots > 0)
        self.scope = f"{len(self._questions.items):,} items of {task.name}"
        self.forget()

    def _scorer(self, params) -> Scorer:
        spec, corpus = self._run.spec, self._run.corpus
        return Scorer.build(spec.model, {"params": params}, spec.layout, corpus.tokenizer, self._run.config)

    def forget(self) -> None:
        self.step = None

    def is_due(self, step: int, last: bool) -> bool:
        """Whether it belongs after `step`, which is the `last` one of the run or not."""
        return last or (self.every > 0 and step % self.every == 0)

    def set_loss(self, step: int, loss: float | None = None) -> None:
        """Remember that the parameters after `step` are scored."""
        self.step = step

    def checkpoint_metrics(self, step: int) -> None:
        return None

    def score(self, params, step: int, stop: Callable[[], bool]) -> tuple[dict, dict] | None:
        """(metrics to show, those to write) of `params` after `step`; None if `stop` asks to end."""
        if stop():
            return None
        spec = self._run.spec
        params = spec.to_global(params)
        runner = Runner.build(self._scorer(params), spec.model, params, spec.layout)
        result = runner.run(self._questions, self._options.shots)
        self.set_loss(step)
        shown = {name: measure.value for name, measure in result.measures.items()}
        return shown, shown | {"items": len(result.outcomes)}
