"""A named evaluation that asks a task without training (`pretrain.scoring`) while a run trains."""

from collections.abc import Callable

from input_pipeline import corruption
from pretrain.errors import UserError
from pretrain.evaluation.evaluation import selected
from pretrain.scoring.requests import Scorer
from pretrain.scoring.runner import Runner
from pretrain.scoring.zero_shot import task_named
from pretrain.training.startup import RunParts


class TaskEvaluator:
    """Asks the task of `config.evaluations.NAME` every so many updates; it never selects the best checkpoint."""

    enabled, selects, measure = True, False, ""

    def __init__(self, run: RunParts, name: str):
        """Errors: UserError and DataError for what could not be asked later."""
        self.name, options = name, run.config.evaluations[name]
        self.every, self._options, self._run = options.every, options, run
        key = f"config.evaluations.{name}"
        self._task = task_named(options.task, options.data, f"{key}.task")
        if selected(run.config)[0] == name:
            raise UserError(f"config.checkpoint.best={run.config.checkpoint.best}: {name} is a task. Name another.")
        if run.spec.mesh.shape["sequence"] > 1:
            raise UserError(f"{key}.task: needs config.mesh.sequence=1. Remove the evaluation.")
        tokenizer, spec = run.corpus.tokenizer, run.spec
        self._scorer = Scorer.build(spec.model, None, spec.layout, tokenizer, run.config)
        number = len(self._task.items(self._task.data, options.limit))
        self.scope = f"{number:,} items of {self._task.name}"
        self.forget()

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
        run, tokenizer = self._run, self._run.corpus.tokenizer
        params = run.spec.to_global(params)
        self._scorer.score_rows.params = {"params": params}
        frame = corruption.Frame(run.config.tokenizer.single, run.config.tokenizer.pair, tokenizer.special)
        prompts = corruption.build(run.config.objective.to_dict(), tokenizer, frame).prompts
        runner = Runner.build(self._scorer, run.spec.model, params, run.spec.layout, prompts)
        result = runner.run(self._task, self._options.shots, self._options.limit)
        self.set_loss(step)
        shown = {name: measure.value for name, measure in result.measures.items()}
        return shown, shown | {"items": len(result.outcomes)}
