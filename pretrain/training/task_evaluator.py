"""Named evaluations without a loss while a run trains: a task's score, or probes of all layers (`pretrain.scoring`)."""

from collections.abc import Callable, Mapping
from typing import Any

from input_pipeline import corruption
from pretrain.errors import UserError, nearest
from pretrain.evaluation.evaluation import selected
from pretrain.scoring.probe_layers import probe_layers, read_parts
from pretrain.scoring.probe_tasks import TASKS
from pretrain.scoring.reader import Reader
from pretrain.scoring.requests import Scorer
from pretrain.scoring.runner import Questions, Runner
from pretrain.scoring.task_table import task_named
from pretrain.training.startup import RunParts


class CheckpointEvaluator:
    """Scores the parameters every so many updates; it never selects the best checkpoint."""

    enabled, selects, measure = True, False, ""
    key: str  # the field of `config.evaluations.NAME` that names what is asked
    scope: str  # the data that the metrics are of

    def __init__(self, run: RunParts, name: str):
        """Errors: UserError and DataError for what could not be asked later."""
        self.name, options = name, run.config.evaluations[name]
        self.every, self._options, self._run = options.every, options, run
        key = f"config.evaluations.{name}.{self.key}"
        self._prepare(key)
        if selected(run.config)[0] == name:
            raise UserError(f"config.checkpoint.best={run.config.checkpoint.best}: {name} has no loss. Name another.")
        if run.spec.mesh.shape["sequence"] > 1:
            raise UserError(f"{key}: needs config.mesh.sequence=1. Remove the evaluation.")
        self.forget()

    def _prepare(self, key: str) -> None:
        """Read what is asked. Errors: as the constructor's."""
        raise NotImplementedError

    def _metrics(self, params: Mapping[str, Any]) -> tuple[dict[str, float], int]:
        """(metrics by name, number of what they were taken on) of global parameters."""
        raise NotImplementedError

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
        shown, items = self._metrics(self._run.spec.to_global(params))
        self.set_loss(step)
        return shown, shown | {"items": items}


class TaskEvaluator(CheckpointEvaluator):
    """Asks the task of `config.evaluations.NAME.task`."""

    key = "task"

    def _prepare(self, key):
        options = self._options
        task = task_named(options.task, options.data, key)
        self._scorer({})  # a model without likelihoods is an error now, not after hours of training
        self._questions = Questions.read(task, options.limit, options.shots > 0)
        self.scope = f"{len(self._questions.items):,} items of {task.name}"

    def _scorer(self, params) -> Scorer:
        spec, corpus = self._run.spec, self._run.corpus
        return Scorer.build(spec.model, {"params": params}, spec.layout, corpus.tokenizer, self._run.config)

    def _metrics(self, params):
        spec = self._run.spec
        runner = Runner.build(self._scorer(params), spec.model, params, spec.layout)
        result = runner.run(self._questions, self._options.shots)
        return {name: measure.value for name, measure in result.measures.items()}, len(result.outcomes)


class ProbeEvaluator(CheckpointEvaluator):
    """Probes all layers with the task of `config.evaluations.NAME.probe`."""

    key = "probe"

    def _prepare(self, key):
        options = self._options
        if options.probe not in TASKS:
            raise UserError(f"{key}={options.probe}: no probe{nearest(options.probe, TASKS)}")
        source = f"config.evaluations.{self.name}.data"
        if not options.data:
            raise UserError(f"{source}: names no records. Give some such as conllu:FILE.")
        self._parts = read_parts(options.probe, options.data, "", options.limit, self._run.config.seed, (source, ""))
        self.scope = f"{len(self._parts[1].texts):,} texts of {options.probe}"

    def _metrics(self, params):
        spec, config, tokenizer = self._run.spec, self._run.config, self._run.corpus.tokenizer
        frame = corruption.Frame(config.tokenizer.single, config.tokenizer.pair, tokenizer.special)
        reader = Reader(spec.model, {"params": params}, tokenizer, frame, spec.layout)
        rows, _ = probe_layers(reader, self._parts)
        scores = {f"{name}_{row['layer']}": row[name] for row in rows for name in row if name not in ("layer", "shots")}
        return scores, len(self._parts[1].texts)
