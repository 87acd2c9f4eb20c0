"""The resolved config in a work folder, and whether the run that it holds may go on with another."""

import copy
import json
from collections.abc import Mapping

from ml_collections import ConfigDict

from input_pipeline.away import persistently
from input_pipeline.files import read_json
from input_pipeline.remote import at, is_remote
from pretrain.config.keys import check_keys, flat
from pretrain.config.overrides import with_overrides
from pretrain.config.values import tuples
from pretrain.errors import UserError, listed
from pretrain.workdir import ANEW, CONFIG, Workdir, is_utf8, write

SHOWN = 6  # keys that a sentence names
# Keys that a run may change when it goes on: where, how and how long it runs, not what it learns.
FREE = (
    "name",
    "mesh",
    "log",
    "checkpoint",
    "evaluate",
    "objective.selects",
    "schedule.decay_steps",
    "train.steps",
    "train.accumulate",
    "train.backend",
    "train.max_bad_steps",
    "train.on_bad_step",
    "train.patience",
    "train.compare_every",
    "data.store",
    "data.workers",
    "data.prefetch",
    "model.scan",
    "model.remat",
    "model.attention_path",
)

# And rates of dropout, which recipes lower on the way (BART, mBART): what began with one may go on with another.
DROPOUT = "model.dropout"

# Keys that each process of a run may have its own of: where its host keeps the tokenised text and how it reads that.
OF_A_HOST = ("data.store", "data.workers", "data.prefetch")


def save(config: ConfigDict, workdir: str) -> None:
    """Writes the resolved config into the work folder, whole or not at all."""
    try:
        persistently(lambda: at(workdir).mkdir(parents=True, exist_ok=True))
        write(Workdir(workdir).config, (json.dumps(config.to_dict(), indent=2) + "\n").encode())
    except OSError as error:
        raise UserError(
            f"the work folder {workdir} cannot be written ({error.strerror}); choose another --workdir"
        ) from error


def check_folder(workdir: str) -> None:
    """Raises UserError where a work folder's name is that of a file, or none that checkpoints can have."""
    try:
        place = at(workdir).absolute()
    except FileNotFoundError:
        raise UserError("the folder where this was started is gone; start it in one that is there") from None
    if "\\" in str(place):
        raise UserError(f"--workdir={workdir} has a backslash in its path, where no checkpoint can be; choose another")
    if not is_utf8(str(place)):
        raise UserError(
            f"--workdir={ascii(workdir)[1:-1]} is not UTF-8, as the path of checkpoints must be; choose another"
        )
    if is_remote(place) and {*"*?["}.intersection(str(place)):  # by which what deletes a folder would delete others
        raise UserError(
            f"--workdir={workdir} has a '*', '?' or '[', which an object store's tools take for a pattern; choose a "
            "name without"
        )
    if persistently(at(workdir).is_file):  # the first look at a folder, which may be away for a while
        raise UserError(f"--workdir={workdir} is a file, not a folder; give the folder of a run, or a new one's name")


def saved(workdir: str) -> ConfigDict:
    """The resolved config of a work folder."""
    check_folder(workdir)
    path = Workdir(workdir).config
    if not persistently(path.is_file):
        around = [str(folder) for folder in at(workdir).parents if Workdir(folder).config.is_file()]
        remedy = f"did you mean --workdir={around[0]}?" if around else "give the --workdir of a `pretrain train` run"
        raise UserError(f"{workdir} is not a work folder (it has no {CONFIG}); {remedy}")
    try:
        read = read_json(path)
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({error}); restore it or choose another --workdir") from error
    if not isinstance(read, dict):
        raise UserError(f"{path} holds no config, but {json.dumps(read)[:40]}; restore it or choose another --workdir")
    config = ConfigDict(tuples(read))
    _check_ours(workdir, config)
    check_keys(config, str(path), "restore the file, or use the version of Longhaul that wrote it")
    return with_overrides(config, ())


def check_ours(folder: str) -> None:
    """Raises UserError where a folder holds a model of Hugging Face's library, and is no run's."""
    try:
        config = read_json(Workdir(folder).config)
    except (OSError, ValueError):  # whatever else it may be
        return
    if isinstance(config, Mapping):
        _check_ours(folder, config)


def _check_ours(folder: str, config: Mapping | ConfigDict) -> None:
    if "model_type" in config and "model" not in config:
        raise UserError(
            f"{folder} is a model of Hugging Face's library; `pretrain import --folder={folder} --workdir=runs/NAME` "
            "makes a work folder of it"
        )


def differences(old: Mapping, new: Mapping) -> list[str]:
    """What `new` would change in a run that began as `old`, beyond the keys that a run may change."""
    a, b = flat(old), flat(new)
    keys = [k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]
    fixed = [k for k in keys if not any(k == f or k.startswith(f + ".") for f in FREE) and not k.startswith(DROPOUT)]
    there, here = ([keys_of.get(k, "absent") for k in fixed] for keys_of in (a, b))
    return [
        f"{k} ({was or repr(was)} there, {now or repr(now)} here)"
        for k, was, now in zip(fixed, there, here, strict=True)
    ]


def takes_tokenizer(config: ConfigDict) -> bool:
    """Whether a run that names no tokenizer has another's: of the run that it begins with, or learns from."""
    return bool(config.train.start_from or config.distill.teacher)


def changed_dropout(old: ConfigDict, new: ConfigDict) -> str | None:
    """What to tell a run that goes on as `new`, if its rates of dropout are others than they were as `old`."""
    a, b = flat(old), flat(new)
    changed = [f"config.{k} is {b[k]} and was {a[k]}" for k in sorted(b) if k.startswith(DROPOUT) and a.get(k) != b[k]]
    return f"{', '.join(changed)}, until here" if changed else None


def check_unedited(workdir: str, config: ConfigDict, made_with: Mapping, remedy: str = "undo the change") -> None:
    """Raises if a folder's own config is not that which its checkpoints were `made_with`, as JSON has it.

    Keys that only one of them has are another version's.
    """
    before = flat(tuples(made_with))
    now = {key: value for key, value in flat(config).items() if key in before}
    if changed := differences({key: before[key] for key in now}, now):
        raise UserError(
            f"{Workdir(workdir).config} is not the config that the run's checkpoints were made with: it differs in "
            f"{listed(changed, SHOWN, '; ')}; {remedy}"
        )


def of_start(config: ConfigDict, made_with: Mapping) -> ConfigDict:
    """`config` as it was at the start that saved a checkpoint, which says that it was `made_with`, as JSON has it.

    Keys that only one of them has, or has with values of this type, are another version's.
    """
    before, known = copy.deepcopy(config), flat(config)
    told = flat(tuples(made_with)).items()
    with before.unlocked():
        before.update_from_flattened_dict({k: v for k, v in told if k in known and type(v) is type(known[k])})
    return before


def check_same_run(workdir: str, config: ConfigDict) -> None:
    """Raises if the work folder belongs to a run of another config; one without a checkpoint is free for any."""
    file = Workdir(workdir).config
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is no file; move it away, restore the run's own, or choose another --workdir")
    if not Workdir(workdir).steps():
        return
    if not file.exists():
        raise UserError(
            f"{workdir} holds checkpoints, but not the {CONFIG} that they were made with; restore it, or {ANEW}"
        )
    changed = differences(saved(workdir), config)
    if changed:
        of_text = any(key.startswith(("data.", "tokenizer.")) for key in changed)  # which a fresh start keeps
        fresh = f" undo the change, or {ANEW}"
        same_ids = not any(key.startswith("tokenizer.") for key in changed)
        other = f", with --config.train.start_from={workdir} to begin with its weights," if same_ids else ","
        remedy = f"{other} or undo the change" if of_text else f"{other}{fresh}"
        raise UserError(
            f"{workdir} belongs to a run of another config, which differs in {listed(changed, SHOWN, '; ')}; choose "
            f"another --workdir{remedy}"
        )
