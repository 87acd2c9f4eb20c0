"""Configs: recipe files, variants, dotted overrides, and the resolved copy in a work folder.

`--config=configs/gpt2.py:medium --config.train.steps=200` has the syntax of ml_collections, whose `config_flags` reads
the overrides. The declared keys, types and ranges are in `configs/common.py`; a config that passes `check_keys` and
`check_ranges` has exactly those keys, so that the rest of the program reads `config.train.steps` and never `.get`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags

import models
from configs import common
from configs.ranges import Range
from input_pipeline.io import make_folder, open_path, read_object
from pretrain.errors import UserError, nearest
from pretrain.recipes import model_recipes as model_recipes
from pretrain.recipes import recipe_config as recipe_config
from pretrain.recipes import recipe_module as recipe_module
from pretrain.recipes import recipes as recipes
from pretrain.workdir import CONFIG, Workdir, write

# Sections whose keys depend on their `kind`.
OF_A_KIND = {"model": common.MODELS, "objective": common.OBJECTIVES}
# Sections that hold any subset of the model's keys: the ones that differ from `config.model`.
PARTIAL = ("evaluate.model", "distill.model")

# Keys that older work folders lack; their defaults do not change a run.
YOUNGER = ("data.on_bad_record", "data.bad_records", "data.replace_surrogates", "log.seconds", "log.wandb")
YOUNGER += ("schedule.cooldown", "schedule.cooldown_shape", "schedule.cut_frac", "schedule.ratio", "train.batch_ramp")
YOUNGER += ("model.lora", "model.lora_alpha", "model.lora_targets", "model.adapter")
YOUNGER += ("train.trials",)
YOUNGER += ("optimizer.frozen", "optimizer.unfreeze", "optimizer.layer_decay", "optimizer.head_rate")
YOUNGER += ("tokenizer.single", "tokenizer.pair", "data.buckets", "checkpoint.best")
YOUNGER += ("model.norm_offset", "model.rope_theta", "model.rope_scaling", "model.output_bias", "model.qk_norm")
YOUNGER += ("model.summary", "data.examples", "data.balanced", "objective.lm_weight")
YOUNGER += tuple(f"objective.{name}" for name in ("inputs", "targets", "turns", "turn", "answers", "loss_on"))
YOUNGER += tuple(f"objective.{name}" for name in ("target_length", "stop", "labels", "language", "metrics"))
YOUNGER += ("model.mix", "objective.joint", "objective.joint_starts")
OF_A_HOST = ("data.store", "data.workers", "data.prefetch")  # may differ between the processes of one run
DTYPES = {"bf16": "bfloat16", "fp32": "float32", "f32": "float32", "fp16": "float16", "f16": "float16"}  # short names


def ignore(message: str) -> None:
    """A `report` that drops its messages."""


# --- Keys ---------------------------------------------------------------------------------------------------------


def flat(config, prefix: str = "") -> dict:
    """Dotted keys and values of a nested mapping: {"train.steps": 200, ...}."""
    rows = {}
    for name, value in config.items():
        rows |= flat(value, f"{prefix}{name}.") if hasattr(value, "items") else {prefix + name: value}
    return rows


def every_key() -> list[str]:
    """Dotted keys of all configs, of every kind of model and objective."""
    keys = [f"{s}.{name}" for s, kinds in OF_A_KIND.items() for declared in kinds.values() for name in declared()]
    return list(dict.fromkeys([*flat(common.base()), *keys]))


def scored_length(config) -> int:
    """Tokens in a row of evaluation: config.evaluate.length, where 0 means config.data.length."""
    return config.evaluate.length or config.data.length


def scored_key(config) -> str:
    """The key that sets `scored_length`."""
    return "config.evaluate.length" if config.evaluate.length else "config.data.length"


def takes_tokenizer(config) -> bool:
    """Whether the run takes another run's tokenizer: that of its initial weights or of its teacher."""
    return bool(config.train.start_from or config.distill.teacher)


def check_keys(config: ConfigDict, source: str) -> None:
    """Raises UserError unless `config`, from `source`, has exactly the declared keys and types."""
    given, known = flat(config), common.base()
    for section, kinds in OF_A_KIND.items():
        kind = given.get(f"{section}.kind")
        if kind not in kinds:
            raise UserError(f"{source}: config.{section}.kind='{kind}' is unknown{nearest(str(kind), kinds)}")
        known[section] = kinds[kind]()
    required = flat(known)
    declared = required | {key: known.model[key.rpartition(".")[2]] for key in partial_keys(known)}
    declared |= {f"evaluations.{name}.{key}": value for name, key, value in _of_evaluations(config)}
    for key, value in given.items():
        if key not in declared:
            raise UserError(f"{source}: {unknown_key(key, known)}")
        # type(), since a bool is an int to isinstance
        if type(value) is not (kind := type(declared[key])):
            raise UserError(f"{source}: config.{key} is of type {type(value).__name__}. It must be a {kind.__name__}.")
    _check_complete(given, required, source)


def _check_complete(given: Mapping, required: Mapping, source: str) -> None:
    if missing := [key for key in required if key not in given]:
        raise UserError(f"{source}: config.{missing[0]} is missing. Start a recipe from configs.common.base().")


def partial_keys(config: ConfigDict) -> list[str]:
    """Dotted keys that a config may have in its PARTIAL sections."""
    return [f"{section}.{name}" for section in PARTIAL for name in config.model]


def unknown_key(key: str, config: ConfigDict) -> str:
    """Message about a dotted key that `config` does not have."""
    parent, _, name = key.rpartition(".")
    if parent == "model" and (why := models.ABSENT.get((config.model.kind, name))):
        return f"config.{key}: no such key of a model of kind '{config.model.kind}': {why}"
    known = [*flat(config), *partial_keys(config)]
    siblings = [other for other in known if parent and other.startswith(f"{parent}.")]
    elsewhere = [other for other in known if other.endswith(f".{name}")]
    below = [other for other in known if other.startswith(f"{key}.")]
    return f"config.{key}: no such key{nearest(key, siblings or below or elsewhere or known, 'config.')}"


def check_ranges(config: ConfigDict) -> None:
    """Raises UserError unless every number of `config` is in the range declared beside its default."""
    ranges = ranges_of(config)
    for key, value in flat(config).items():
        if key in ranges and (rule := ranges[key].violation(value)):
            raise UserError(f"config.{key}={value}: must be {rule}.")


def ranges_of(config: ConfigDict) -> dict[str, Range]:
    """The range of each number of `config`, by dotted key."""
    of_kind = {section: kinds[config[section].kind].ranges for section, kinds in OF_A_KIND.items()}
    of_kind |= dict.fromkeys(PARTIAL, of_kind["model"])
    ranges = {f"{section}.{name}": one for section, table in of_kind.items() for name, one in table.items()}
    ranges |= {
        f"evaluations.{name}.{key}": common.evaluation.ranges[key]
        for name, key, _ in _of_evaluations(config)
        if key in common.evaluation.ranges
    }
    return common.base.ranges | ranges


def _of_evaluations(config: ConfigDict) -> Iterator[tuple[str, str, Any]]:
    """(name, key, default) of each key of each named evaluation."""
    return ((name, key, value) for name in config.evaluations for key, value in common.evaluation().items())


def _complete_evaluations(config: ConfigDict) -> None:
    """Adds the keys that named evaluations leave out. Errors: UserError for a name that is taken or no word."""
    for name, given in config.evaluations.items():
        if name in ("train", "validation", "test") or not name.isidentifier() or not hasattr(given, "items"):
            raise UserError(
                f"config.evaluations.{name}: must be a section with a name of its own, such as "
                "evaluations.books = dict(data=..., every=...)."
            )
        with config.unlocked():
            config.evaluations[name] = ConfigDict(common.evaluation().to_dict() | given.to_dict())


def data_section(config: ConfigDict) -> dict:
    """The data section, the seed, and the sources of named evaluations that have some of their own."""
    named = {name: one.data for name, one in config.evaluations.items() if one.data and not (one.task or one.probe)}
    return config.data.to_dict() | {"evaluations": named, "seed": config.seed}


# --- Overrides --------------------------------------------------------------------------------------------------


def load(
    spec: str, overrides: Sequence[tuple[str, str]] = (), report: Callable[[str], None] = ignore, workdir: str = ""
) -> ConfigDict:
    """The locked config of `path[:variant]` with `overrides`, pairs of dotted key and text.

    `report` receives what follows from them. `workdir`: the run's folder. Errors: UserError, and the recipe's own
    ConfigError.
    """
    path, _, variant = spec.partition(":")
    return with_overrides(recipe_config(path, variant), overrides, report, path, workdir)


def with_overrides(
    config: ConfigDict,
    overrides: Sequence[tuple[str, str]],
    report: Callable[[str], None] = ignore,
    source: str = "config",
    workdir: str = "",
) -> ConfigDict:
    """`config`, changed in place by `overrides`, checked and locked; `report` receives what follows from them."""
    known = {key: value for key, value in flat(common.base()).items() if key.partition(".")[0] not in OF_A_KIND}
    _check_complete(flat(config), known, source)
    _complete_evaluations(config)
    if "model.kind" not in flat(config):
        _take_model(config, dict(overrides), source, workdir, report)
    overrides = [(key, DTYPES.get(text, text) if key.endswith("dtype") else text) for key, text in overrides]
    # Implied overrides come first, so that a given one wins.
    overrides = [*_implied(config, dict(overrides), report), *overrides]
    with config.unlocked():
        for key, _ in overrides:
            _check_override(config, key)
        apply_overrides(config, overrides)
    check_keys(config, source)
    check_ranges(config)
    return config.lock()


def _take_model(config: ConfigDict, given: Mapping[str, str], source: str, workdir: str, report) -> None:
    """Gives `config` the model of the run in train.start_from, and its tokenizer unless tokenizer.path names another.

    Keys of the recipe's own section, which has no kind, stay. If that run is gone, `workdir` has them, if it started
    from it. `given` are overrides, to be applied later.
    """
    start_from, path = (given.get(key, flat(config)[key]) for key in ("train.start_from", "tokenizer.path"))
    if not start_from and config.data.layout == "examples":
        with config.unlocked():
            common.use_small_encoder(config)
        report("no config.train.start_from: a small encoder is trained from scratch (configs.common.use_small_encoder)")
        return
    if not start_from:
        raise UserError(f"{source}: config.model has no kind. Set config.train.start_from to a run, to take its model.")
    run, _ = run_and_step(start_from)
    workdir = workdir or default_workdir(given.get("name", config.name))
    if not Workdir(run).config.is_file() and Workdir(workdir).config.is_file():
        run = workdir if saved(workdir).train.start_from == start_from else run
    there = saved(run, "config.train.start_from")
    with config.unlocked():
        own = {key.removeprefix("model."): value for key, value in flat(config).items() if key.startswith("model.")}
        config.model = ConfigDict(there.model.to_dict() | own)
        if not path:
            # Without a path the run's own copy is read: the file that it was made from may be gone.
            config.tokenizer = ConfigDict(there.tokenizer.to_dict() | {"path": ""})
    report(f"taking config.model{'' if path else ' and config.tokenizer'} from {run}")


def apply_overrides(config: ConfigDict, overrides: Sequence[tuple[str, str]]) -> None:
    """Sets keys of `config` to values that texts spell, each read as the type that its key has."""
    types = {key: type(value) for key, value in flat(config).items()}
    # absl reads 1e6 as a float only, so a whole number of an int key is written out.
    argv = ["", *(f"--config.{key}={_write_out(text) if types[key] is int else text}" for key, text in overrides)]
    holder = flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=holder, lock_config=False, sys_argv=argv)
        holder(argv)
    except (flags.Error, ValueError, TypeError, SyntaxError) as error:
        message = str(error).partition("\n")[0].removeprefix("flag --")
        raise UserError(f"{message}. Give a value of the key's type (docs/configs.md).") from error


def _write_out(text: str) -> str:
    """The digits of a whole number such as 1e6; any other text as it is."""
    try:
        return str(int(float(text))) if float(text).is_integer() else text
    except (ValueError, OverflowError):
        return text


def _check_override(config: ConfigDict, key: str) -> None:
    """Raises UserError for a key that cannot be set; adds the model's value of a key of a PARTIAL section."""
    parent, _, name = key.rpartition(".")
    if parent in OF_A_KIND and name == "kind":
        raise UserError(f"config.{key}: the kind cannot be overridden. Give --config a recipe of that kind.")
    known = flat(config)
    if key not in known and key not in partial_keys(config):
        raise UserError(unknown_key(key, config))
    if key not in known:
        config.update_from_flattened_dict({key: config.model[name]})


def _implied(config: ConfigDict, given: dict[str, str], report: Callable[[str], None]) -> list[tuple[str, str]]:
    """Overrides that follow from another training text: the recipe's validation text and weights do not fit it."""
    if given.get("data.train", config.data.train) == config.data.train:
        return []
    empty = {"data.validation": "", "data.test": "", "data.weights": "()"}
    dropped = [(key, text) for key, text in empty.items() if key not in given and config.data[key.partition(".")[2]]]
    if dropped:
        held = config.data.holdout and not given.get("data.validation")
        held = f"; {config.data.holdout:.0%} of it is held out for validation" if held else ""
        report(f"data.train is not the recipe's: {', '.join(key for key, _ in dropped)} cleared{held}")
    return dropped


# --- The work folder's copy ---------------------------------------------------------------------------------------


def save(config: ConfigDict, workdir: str) -> None:
    """Writes the resolved config into the work folder, atomically."""
    make_folder(open_path(workdir))
    write(Workdir(workdir).config, (json.dumps(config.to_dict(), indent=2) + "\n").encode())


def saved(workdir: str, flag: str = "--workdir") -> ConfigDict:
    """The resolved config of a work folder, the value of `flag`."""
    check_folder(workdir, flag)
    path = Workdir(workdir).config
    if not path.is_file():
        raise UserError(f"{flag}={workdir}: has no {CONFIG}. Give a run's folder.")
    return with_overrides(_with_new_keys(ConfigDict(as_tuples(read_object(path)))), (), source=str(path))


def default_workdir(name: str) -> str:
    """The work folder of a run whose command names none."""
    return f"runs/{name}"


def run_and_step(name: str) -> tuple[str, str]:
    """(folder, checkpoint) that FOLDER, FOLDER@best or FOLDER@STEP means; without a checkpoint the latest."""
    if "@" in name and not open_path(name).is_dir():  # a folder's own name may have an @
        run, _, word = name.rpartition("@")
        return run, word
    return name, "latest"


def _with_new_keys(config: ConfigDict) -> ConfigDict:
    """`config`, with the defaults of those YOUNGER keys that its run did not know."""
    known = common.base()
    for section, kinds in OF_A_KIND.items():
        if section in config and (kind := config[section].get("kind")) in kinds:
            known[section] = kinds[kind]()
    if "evaluations" not in config:  # an empty section is no key of `flat`
        config.evaluations = ConfigDict()
    missing = {key: value for key, value in flat(known).items() if key in YOUNGER and key not in flat(config)}
    config.update_from_flattened_dict(missing)
    return config


def check_folder(workdir: str, flag: str = "--workdir") -> None:
    """Raises UserError for a work folder, the value of `flag`, that cannot hold a run."""
    path, problem = open_path(workdir), ""
    if path.is_file():
        problem = "a file, not a folder"
    # Orbax finds the parts of a checkpoint by glob: with these it would save what it cannot restore.
    elif any(letter in str(path.absolute()) for letter in "*?["):
        problem = "'*', '?' or '[' in its path"
    if problem:
        raise UserError(f"{flag}={workdir}: {problem}. Choose another folder.")
    # A run would overwrite its config.json.
    saved_config = Workdir(workdir).config
    if saved_config.is_file() and "model_type" in read_object(saved_config):
        fix = f"Run `pretrain import --folder={workdir} --workdir=NEW` first"
        raise UserError(f"{flag}={workdir}: a Hugging Face model. {fix}.")


def as_tuples(value):
    """JSON's lists as tuples, the type of every sequence in a config."""
    if isinstance(value, dict):
        return {name: as_tuples(item) for name, item in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value
