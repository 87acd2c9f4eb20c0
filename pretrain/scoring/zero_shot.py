"""Tasks that a checkpoint is asked without training: records to prompts, and scores of requests to metrics.

Names and metrics are those of lm-evaluation-harness (Gao et al. 2021), so that figures compare; few-shot prompts are
GPT-3's (Brown et al. 2020, section 2.4).
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from input_pipeline.corruption.examples import fill_template
from input_pipeline.errors import DataError
from input_pipeline.sources.records import value_at
from pretrain.errors import UserError, lookup
from pretrain.losses.objective import perplexity
from pretrain.scoring.inputs import records
from pretrain.scoring.likelihood import Scored
from pretrain.scoring.requests import Request
from pretrain.tasks.metrics import answers, texts

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TEXT = str | int | float
WRITTEN = ("exact_match", "f1", "bleu", "chrf")  # metrics of generated texts


class Item(NamedTuple):
    """A record as a task asks it: one context, or one per choice; the right choice, or the right texts."""

    contexts: tuple[str, ...]
    choices: tuple[str, ...]
    answer: int = 0
    references: tuple[str, ...] = ()
    group: str = ""
    intro: str = ""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(context, choice) of each request: as many as there are contexts or choices."""
        number = max(len(self.contexts), len(self.choices))
        return list(zip(*(one * (number // len(one)) for one in (self.contexts, self.choices)), strict=True))

    def texts(self, separator: str) -> list[str]:
        """The contexts, each with its choice or right text behind it."""
        if self.references:
            return [separator.join((self.contexts[0], one)) for one in self.references]
        return [separator.join(pair) for pair in self.pairs]

    @property
    def right(self) -> tuple[str, str]:
        """The context and continuation of the right answer."""
        return (self.contexts[0], self.references[0]) if self.references else self.pairs[self.answer]


@dataclass(frozen=True, kw_only=True)
class Task:
    """How records become prompts. Texts are templates over the fields of a record, such as "Q: {question}\\nA:".

    kind: one of `KINDS`. data, shots: sources of records; without `shots` examples come from `data` itself.
    prepare: a function that renames and cleans the fields of a record.
    context: of kind contexts one per choice. choices: templates, or a field with a list; of kind last_word the word.
    answer: the right choice by number, letter or text; of kind generate the right text, or a list of them.
    separator: between context and choice. between: between examples. description: a template in front of all.
    unconditional: the context of acc_mutual_info. stop: texts that end a generated one.
    by: the field of subsets; examples are of the same. clean: what is compared of a generated or right text.
    chance: accuracy of guessing, for the mean over tasks.
    """

    name: str
    kind: str
    data: str = ""
    shots: str = ""
    prepare: Callable[[Mapping], Mapping] = dict
    context: str | tuple[str, ...] = ""
    choices: str | tuple[str, ...] = "choices"
    answer: str = "answer"
    separator: str = " "
    between: str = "\n\n"
    description: str = ""
    unconditional: str = "Answer:"
    metrics: tuple[str, ...] = ("acc",)
    stop: tuple[str, ...] = ("\n",)
    max_tokens: int = 64
    by: str = ""
    clean: Callable[[str], str] = str.strip
    chance: float = 0.0
    seed: int = 0

    def __post_init__(self):
        known = lookup(f"task {self.name}: kind", self.kind, KINDS)
        for metric in self.metrics:
            lookup(f"task {self.name}: metrics", metric, dict.fromkeys(known))

    def on(self, data: str, shots: str = "") -> "Task":
        """The task with other sources, if they are named; examples are never of another source's data."""
        return replace(self, data=data or self.data, shots=shots or ("" if data else self.shots))

    def item(self, record: Mapping) -> Item:
        """A record as it is asked. Errors: DataError for missing fields and unknown answers."""
        try:
            record = dict(self.prepare(record))
        except KeyError as error:
            fields = ", ".join(record)
            raise DataError(f"task {self.name}: no field {error} among {fields}. Name another source.") from None
        contexts = self.context if isinstance(self.context, tuple) else (self.context,)
        contexts = tuple(fill_template(one, record) for one in contexts)
        more = {"group": str(record.get(self.by, "")), "intro": fill_template(self.description, record)}
        if self.kind == "generate":
            template = "{" in self.answer
            right = fill_template(self.answer, record) if template else value_at(record, self.answer, TEXT | list)
            right = right if isinstance(right, list) else [right]
            return Item(contexts, ("",), 0, tuple(map(str, right)), **more)
        choices = self.choices if isinstance(self.choices, tuple) else value_at(record, self.choices, list | str)
        choices = [choices] if isinstance(choices, str) else choices
        choices = [fill_template(one, record) if isinstance(self.choices, tuple) else str(one) for one in choices]
        if not all(one.strip() for one in choices):
            raise DataError(f"task {self.name}: a choice is empty. Remove the record.")
        answer = 0 if self.kind in ("pairs", "last_word") else place_of(record, self.answer, choices, len(contexts))
        return Item(contexts, tuple(choices), answer, **more)

    def items(self, source: str, limit: int = 0) -> list[Item]:
        """The first `limit` items of a source, or all. Errors: DataError with the number of the record."""
        found = []
        for number, record in enumerate(records(source, f"--tasks={self.name}"), 1):
            try:
                found.append(self.item(record))
            except DataError as error:
                raise DataError(f"--tasks={self.name}, record {number}: {error}") from None
            if len(found) == limit:
                break
        if not found:
            raise DataError(f"--tasks={self.name}: '{source}' holds no record. Name another source.")
        return found

    def prompts(self, items: Sequence[Item], shots: int, pool: Sequence[Item]) -> list[str]:
        """The text in front of each item's context: the description, and `shots` examples drawn by the seed.

        An example is never the item itself, and of the same subset. Errors: UserError for too few examples.
        """
        if not shots:
            return [item.intro for item in items]
        subsets: dict[str, list[Item]] = {}
        for one in dict.fromkeys(pool):
            subsets.setdefault(one.group, []).append(one)
        found = []
        for number, item in enumerate(items):
            others = [one for one in subsets.get(item.group, ()) if one != item]
            if len(others) < shots:
                raise UserError(f"--shots={shots}: {self.name} has only {len(others)} examples. Give fewer.")
            drawn = random.Random(f"{self.seed} {number}").sample(others, shots)
            examples = [self.separator.join(one.right) for one in drawn]
            found.append(item.intro + "".join(f"{example}{self.between}" for example in examples))
        return found

    def requests(self, item: Item, prompt: str) -> list[Request]:
        """The requests of an item: its choices, and for acc_mutual_info these behind `unconditional`."""
        # Without a context, too, as lm-evaluation-harness has it: BLiMP's sentences begin with a blank.
        pairs = [Request(prompt + context, self.separator + choice) for context, choice in item.pairs]
        if "acc_mutual_info" in self.metrics:
            pairs += [Request(self.unconditional, self.separator + choice) for choice in item.choices]
        return pairs


def place_of(record: Mapping, field: str, choices: Sequence[str], contexts: int) -> int:
    """The number of the right choice, which a field gives as a number, a letter or the choice's text."""
    value, number = value_at(record, field, str | int | bool), max(len(choices), contexts)
    if isinstance(value, str):
        if value in choices:
            return choices.index(value)
        value = int(value) if value.isdecimal() else LETTERS.find(value.upper()) if len(value) == 1 else -1
    if not 0 <= value < number:
        raise DataError(f"field '{field}': {record[field]!r} is none of {number} choices. Correct the record.")
    return int(value)


@dataclass(frozen=True)
class Measure:
    """A metric over items: its mean, and the standard error of that."""

    value: float
    stderr: float


def mean_of(values: Sequence[float]) -> Measure:
    """Mean and its standard error; of accuracies sqrt(p (1 - p) / (n - 1))."""
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else 0.0
    return Measure(mean, math.sqrt(variance / n))


class Outcome(NamedTuple):
    """The result of an item: the numbers that metrics are means of, and a record for --predictions."""

    values: dict[str, float]
    row: dict


def choose(task: Task, item: Item, scored: Sequence[Scored]) -> Outcome:
    """The outcome of an item with choices; the first of equally likely ones is chosen."""
    sums = np.array([math.fsum(one.log_probs.tolist()) for one in scored])
    number = len(item.pairs)
    # Contexts share one choice, so that norms change nothing there.
    lengths = {
        "acc": [1] * number,
        "acc_norm": [len(choice) for _, choice in item.pairs],
        "acc_bytes": [len(choice.encode()) for _, choice in item.pairs],
    }
    by_metric = {name: sums[:number] / np.array(length) for name, length in lengths.items()}
    if len(sums) > number:
        by_metric["acc_mutual_info"] = sums[:number] - sums[number:]
    chosen = {name: int(np.argmax(by_metric[name])) for name in task.metrics}
    row = {"choices": [choice for _, choice in item.pairs], "log_likelihoods": sums[:number].tolist()}
    row["answer"] = item.answer
    return Outcome({name: float(one == item.answer) for name, one in chosen.items()}, row | {"chosen": chosen})


def read_word(task: Task, item: Item, scored: Sequence[Scored]) -> Outcome:
    """The outcome of kind last_word: whether all its tokens are the likeliest ones, and its log-likelihood."""
    total, greedy = math.fsum(scored[0].log_probs.tolist()), bool(scored[0].greedy.all())
    row = {"choices": list(item.choices), "log_likelihoods": [total], "greedy": greedy}
    return Outcome({"acc": float(greedy)}, row)


def compare_text(task: Task, item: Item, text: str) -> Outcome:
    """The outcome of kind generate."""
    text, right = task.clean(text), [task.clean(one) for one in item.references]
    values = {"exact_match": float(text in right)}
    if "f1" in task.metrics:
        values["f1"] = max(answers.token_f1_or_empty(text, one) for one in right)
    return Outcome(values, {"prediction": text, "answers": right})


KINDS = {  # kind: its metrics
    "choices": ("acc", "acc_norm", "acc_bytes", "acc_mutual_info"),
    "contexts": ("acc",),
    "pairs": ("acc",),
    "last_word": ("acc", "perplexity"),
    "generate": WRITTEN,
}
OUTCOMES = {"last_word": read_word}


def summarize(task: Task, outcomes: Sequence[Outcome]) -> dict[str, Measure]:
    """The task's metrics over items."""
    found = {}
    for name in task.metrics:
        if name in ("bleu", "chrf"):
            predicted, right = [one.row["prediction"] for one in outcomes], [one.row["answers"] for one in outcomes]
            found[name] = Measure(texts.sacrebleu_score(name, predicted, right), math.nan)
            continue
        if name == "perplexity":  # exp of the mean, and its error by the delta method
            mean = mean_of([-one.row["log_likelihoods"][0] for one in outcomes])
            value = perplexity(mean.value)
            found[name] = Measure(value, value * mean.stderr)
            continue
        found[name] = mean_of([one.values[name] for one in outcomes])
    return found
