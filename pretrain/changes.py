"""What a run may change when it continues: keys that are free, keys that `--allow` names, and their record."""

import copy
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from input_pipeline.sources.parser import EXAMPLES
from pretrain.config import as_tuples, flat, saved, unknown_key
from pretrain.errors import UserError, join_some
from pretrain.metrics.goodput import read_rows
from pretrain.workdir import FRESH_START, Workdir, write

DROPOUT = "model.dropout"  # start of the names of all rates: BART and mBART lower theirs during pretraining
# Keys that any start may change: where, how and how long a run runs, but not what it learns.
FREE = (
    *("name", "mesh", "log", "checkpoint", "evaluate", "evaluations", "objective.selects", "schedule.decay_steps"),
    *("train.steps", "train.trials", "train.accumulate", "train.backend", "train.max_bad_steps", "train.on_bad_step"),
    *("train.patience", "train.compare_every", "data.store", "data.workers", "data.prefetch"),
    *("model.scan", "model.remat", "model.attention_path"),
)
OF_TASKS = ("model.summary", "tokenizer.single", "tokenizer.pair")  # without effect on other runs
# Keys that a start may change with --allow: they leave batches, parameters and optimizer state as they are.
ALLOWABLE = (
    *("schedule", "optimizer.b1", "optimizer.b2", "optimizer.epsilon", "optimizer.weight_decay", "optimizer.decay"),
    *("optimizer.bias_correction", "optimizer.clip", "train.z_loss", "train.label_smoothing", "objective.weight"),
    *("distill.temperature", "distill.soft", "distill.hard", "distill.cosine", "model.dtype"),
)
RECORDED = ("train.steps", "schedule.decay_steps")  # free keys that change the learning rate
MAX_DIFFERENCES = 6  # keys that one message names


def parse_allowed(text: str, config: ConfigDict) -> tuple[str, ...]:
    """The keys of `--allow`, joined by commas. Errors: UserError for one that no run may change."""
    names = tuple(name.strip().removeprefix("config.") for name in text.split(",") if name.strip())
    for name in names:
        if not any(_within(key, (name,)) for key in flat(config)):
            raise UserError(f"--allow={name}: {unknown_key(name, config)}")
        if not _within(name, (*FREE, *ALLOWABLE, DROPOUT)):
            fix = "Start another run, with train.start_from to keep its weights"
            raise UserError(f"--allow={name}: changes batches, parameters or optimizer state. {fix}.")
    return names


def _within(key: str, names: Sequence[str]) -> bool:
    """Whether a key is one of `names` or in a section of them; dropout rates are a section too."""
    return f"{key}.".startswith(tuple(name if name == DROPOUT else f"{name}." for name in names))


def differences(old: Mapping, new: Mapping, allowed: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Keys that `new` changes in a run that began as `old`, and may not: (value there, value here)."""
    free = (*FREE, DROPOUT, *allowed, *(() if flat(new).get("data.layout") in EXAMPLES else OF_TASKS))
    return {key: pair for key, pair in _changed(old, new).items() if not _within(key, free)}


def _changed(old: Mapping, new: Mapping) -> dict[str, tuple[Any, Any]]:
    a, b = flat(old), flat(new)
    pairs = {key: (a.get(key, "absent"), b.get(key, "absent")) for key in sorted(a.keys() | b.keys())}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _shown(changed: Mapping[str, tuple]) -> str:
    pairs = [f"{key} ({there!r} there, {here!r} here)" for key, (there, here) in changed.items()]
    return join_some(pairs, MAX_DIFFERENCES, "; ")


def check_same_run(workdir: str, config: ConfigDict, allowed: Sequence[str] | None = None) -> None:
    """Raises UserError if the work folder holds checkpoints of a run of another config.

    allowed: keys of --allow; None for commands without that flag.
    """
    if not Workdir(workdir).steps():
        return
    if changed := differences(saved(workdir), config, allowed or ()):
        hint = ""
        if allowed is not None and all(_within(key, ALLOWABLE) for key in changed):
            hint = f" --allow={','.join((*allowed, *changed))} to change it from here on,"
        fix = f"Choose another --workdir,{hint} or {FRESH_START}"
        raise UserError(f"--workdir={workdir}: has another config: {_shown(changed)}. {fix}.")


def check_unedited(
    workdir: str, config: ConfigDict, made_with: Mapping, allowed: Sequence[str] = (), remedy: str = "undo the change"
) -> None:
    """Raises UserError if the work folder's config is not the one that its checkpoints were `made_with`, as JSON.

    Keys that only one of them has belong to another version; those in the record of changes were allowed.
    """
    before = flat(as_tuples(made_with))
    now = {key: value for key, value in flat(config).items() if key in before}
    allowed = (*allowed, *(row["key"] for row in read(workdir)))
    if changed := differences({key: before[key] for key in now}, now, allowed):
        raise UserError(
            f"{Workdir(workdir).config}: edited after its checkpoints were made: {_shown(changed)}; {remedy}."
        )


def of_start(config: ConfigDict, made_with: Mapping) -> ConfigDict:
    """`config` with the values of the start that saved a checkpoint, which it was `made_with`, as JSON."""
    before, types = copy.deepcopy(config), {key: type(value) for key, value in flat(config).items()}
    values = flat(as_tuples(made_with)).items()
    with before.unlocked():
        before.update_from_flattened_dict({key: v for key, v in values if type(v) is types.get(key)})
    return before


# --- The record ---------------------------------------------------------------------------------------------------


def read(workdir: str) -> list[dict]:
    """The record of a work folder, oldest first: `step` after which `key` changed from `was` to `now`, and `date`."""
    path = Workdir(workdir).changes
    return list(map(as_tuples, read_rows(path))) if path.is_file() else []


def record(workdir: str, before: ConfigDict, now: ConfigDict, step: int) -> list[dict]:
    """Adds what `now` changes of what a run learns after `step` updates, as `before` has it; returns the new rows."""
    rows, known = read(workdir), flat(before)
    # A start that was killed before its first checkpoint may have recorded the same change.
    known |= {row["key"]: row["now"] for row in rows if row["key"] in known}
    date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    new = [
        {"step": step, "date": date, "key": key, "was": was, "now": value}
        for key, (was, value) in _changed(known, now).items()
        if key in RECORDED or not _within(key, FREE)
    ]
    if new:
        write(Workdir(workdir).changes, "".join(f"{json.dumps(row)}\n" for row in (*rows, *new)).encode())
    return new


def describe(row: Mapping) -> str:
    """A row of the record as a phrase."""
    return f"{row['key']} {row['was']} -> {row['now']} from step {row['step'] + 1:,}"
