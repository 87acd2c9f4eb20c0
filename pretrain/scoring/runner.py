"""Asks a checkpoint tasks: requests of all items at once, and their metrics."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pretrain.decoding.sampling import generate
from pretrain.scoring.requests import Scorer
from pretrain.scoring.zero_shot import OUTCOMES, Item, Measure, Outcome, Task, choose, compare_text, summarize

ROWS = 16  # prompts that are decoded together


class Questions(NamedTuple):
    """A task with the items to ask, and those that examples are drawn from."""

    task: Task
    items: Sequence[Item]
    pool: Sequence[Item]

    @classmethod
    def read(cls, task: Task, limit: int, shots: bool) -> "Questions":
        """Reads the first `limit` items, or all; examples only if there are `shots`. Errors: DataError."""
        # Without data of their own, examples come from all items of the task, also those that are not asked.
        return cls(task, task.items(task.data, limit), task.items(task.shots or task.data) if shots else ())


@dataclass(frozen=True)
class Result:
    """The metrics of a task with a number of examples in its prompts, of each subset, and what became of each item.

    cut: requests that were longer than the context. seconds: of scoring and measuring.
    clean: the metrics of the items that the training text does not hold, and their number, if that was asked.
    """

    task: Task
    shots: int
    measures: Mapping[str, Measure]
    groups: Mapping[str, Mapping[str, Measure]]
    outcomes: Sequence[Outcome]
    cut: int
    seconds: float
    clean: tuple[int, Mapping[str, Measure]] | None = None

    def to_json(self) -> dict:
        """As results are printed and kept."""
        found = {"task": self.task.name, "shots": self.shots, "items": len(self.outcomes), "cut": self.cut}
        found["seconds"] = round(self.seconds, 3)
        for name, measure in self.measures.items():
            found[name] = measure.value
            if not math.isnan(measure.stderr):
                found[f"{name}_stderr"] = measure.stderr
        if self.clean:
            number, measures = self.clean
            found["clean"] = {"items": number} | {name: one.value for name, one in measures.items()}
        if self.groups:
            found["subsets"] = {
                group: {name: one.value for name, one in measures.items()} for group, measures in self.groups.items()
            }
        return found


@dataclass(frozen=True)
class Runner:
    """Asks tasks of one checkpoint.

    scorer: of requests. decode: the greedy continuations of contexts, of at most so many tokens, for tasks that
    generate.
    """

    scorer: Scorer
    decode: Callable[[Sequence[str], int], list[str]]

    @staticmethod
    def build(scorer: Scorer, model, params, layout) -> "Runner":
        """A runner that decodes with a copy of `params` on one device, which is made where a task generates."""

        def decode(contexts: Sequence[str], most: int) -> list[str]:
            return decode_texts(scorer, model, layout.local_copy(params), contexts, most)

        return Runner(scorer, decode)

    def run(
        self,
        questions: Questions,
        shots: int,
        held: Sequence[bool] = (),
        report: Callable[[str], None] = lambda message: None,
    ) -> Result:
        """Asks the items of a task; `held` tells which of them the training text holds. Errors: UserError."""
        began, before = time.perf_counter(), self.scorer.cut
        task, items, pool = questions
        outcomes = self._outcomes(task, items, task.prompts(items, shots, pool), report)
        subsets: dict[str, list[Outcome]] = {}
        for item, outcome in zip(items, outcomes, strict=True):
            subsets.setdefault(item.group, []).append(outcome)
        groups = {name: summarize(task, some) for name, some in sorted(subsets.items())} if task.by else {}
        measures, clean = summarize(task, outcomes), None
        if len(held):
            some = [outcome for outcome, one in zip(outcomes, held, strict=True) if not one]
            clean = len(some), summarize(task, some) if some else {}
        seconds = time.perf_counter() - began
        return Result(task, shots, measures, groups, outcomes, self.scorer.cut - before, seconds, clean)

    def _outcomes(self, task: Task, items: Sequence[Item], prompts: Sequence[str], report) -> list[Outcome]:
        if task.kind == "generate":
            contexts = [prompt + item.contexts[0] for prompt, item in zip(prompts, items, strict=True)]
            found = [cut_at(text, task.stop) for text in self.decode(contexts, task.max_tokens)]
            return [compare_text(task, item, text) for item, text in zip(items, found, strict=True)]
        groups = [task.requests(item, prompt) for item, prompt in zip(items, prompts, strict=True)]
        report(f"{task.name}: {len(items):,} items, {sum(map(len, groups)):,} requests")
        scored = self.scorer.score(groups)
        outcome = OUTCOMES.get(task.kind, choose)
        found = []
        for item, group, scores in zip(items, groups, scored, strict=True):
            values, row = outcome(task, item, scores)
            tokens = [len(one.log_probs) for one in scores]
            found.append(Outcome(values, {"context": group[0].context} | row | {"tokens": tokens}))
        return found


def decode_texts(scorer: Scorer, model, params, contexts: Sequence[str], most: int) -> list[str]:
    """The greedy continuation of each context, of at most `most` tokens and half of the model's context.

    Long contexts lose their beginning.
    """
    found, tokenizer, most = [""] * len(contexts), scorer.tokenizer, min(most, model.context // 2)
    ids, sources = [], []
    for context in contexts:
        if scorer.reads_source:
            (begun,), source, _ = scorer.prompts([context])
            ids.append(begun)
            sources.append({name: values[0, -model.context :] for name, values in source.items()})
        else:
            ids.append(scorer.prompt(context, model.context - most))
    lengths = [len(one["inputs"]) for one in sources] or [*map(len, ids)]
    order = np.argsort(lengths, kind="stable")[::-1]
    for begin in range(0, len(order), ROWS):
        some = order[begin : begin + ROWS].tolist()
        source = {}
        for name in sources[0] if sources else ():
            longest = max(len(sources[i][name]) for i in some)
            source[name] = np.stack([np.pad(sources[i][name], (0, longest - len(sources[i][name]))) for i in some])
        options = {"end_id": tokenizer.end_id, "vocabulary": tokenizer.vocab_size, "source": source}
        results = generate(model, params, [ids[i] for i in some], temperature=0, max_tokens=most, **options)
        for i, (new, _) in zip(some, results, strict=True):
            head = "" if sources else contexts[i]
            found[i] = tokenizer.continuation(ids[i], [t for t in new if t != tokenizer.end_id], head)
    return found


def cut_at(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of `stops`."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def centered_mean(results: Sequence[Result]) -> float:
    """Mean over tasks of (acc - chance) / (1 - chance), as DCLM's CORE (Li et al. 2024): 0 is guessing.

    acc_norm counts where a task has it.
    """
    found = []
    for one in results:
        name = next((name for name in ("acc_norm", "acc") if name in one.measures), "")
        if name:
            found.append((one.measures[name].value - one.task.chance) / (1 - one.task.chance))
    return math.fsum(found) / len(found) if found else math.nan


def write_rows(path: Path, results: Sequence[Result]) -> None:
    """Writes what became of each item as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for one in results:
            for number, outcome in enumerate(one.outcomes):
                row = {"task": one.task.name, "shots": one.shots, "item": number} | outcome.row | outcome.values
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
