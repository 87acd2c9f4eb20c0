"""Reading configs: recipe files, variants, dotted overrides, and the resolved copy in a work folder.

`--config=configs/gpt2.py:medium --config.train.steps=200`, the syntax of ml_collections; every mistake
in it is one sentence that names the nearest right word.
"""

import ast
import contextlib
import difflib
import importlib.util
import json
import math
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from configs import common
from configs.ranges import Range
from pretrain.errors import USER_ERRORS, UserError, nearest
from pretrain.workdir import CONFIG, Workdir

RECIPES = Path(__file__).resolve().parent.parent / "configs"

# Sections of which there are several, by their kind.
OF_A_KIND = {"model": common.MODELS, "objective": common.OBJECTIVES}

# Keys that a run may change when it goes on: where and how it runs, not what it learns.
FREE = (
    "name",
    "mesh",
    "log",
    "checkpoint",
    "evaluate",
    "train.steps",
    "train.backend",
    "train.max_bad_steps",
    "train.on_bad_step",
    "data.store",
    "data.workers",
    "data.prefetch",
    "model.scan",
    "model.remat",
    "model.attention_path",
)

# Keys that each process of a run may have its own of: where its host keeps the tokenised text and how it reads that.
OF_A_HOST = ("data.store", "data.workers", "data.prefetch")


def recipes() -> dict[str, Path]:
    """The recipe files, by name."""
    return {p.stem: p for p in sorted(RECIPES.glob("*.py")) if p.stem not in ("__init__", "common", "ranges")}


def recipe_module(path: str):
    """The Python module of a recipe file."""
    file = _recipe_file(path)
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    with _blaming(path, file):
        spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UserError(
            f"{path} is no recipe: it has no function get_config(variant); see configs/quickstart.py for one"
        )
    return module


def _recipe_file(path: str, variant: str = "") -> Path:
    """Where the recipe is that `path` names, from the current folder or from the one that holds `configs`."""
    file, known = Path(path), recipes()
    if not file.exists() and path in {f"configs/{name}.py" for name in known}:
        return known[file.stem]
    if file.suffix == ".py" and file.is_file():
        return file
    if file.name == CONFIG and file.is_file():
        raise UserError(
            f"--config={path} is what a run wrote down, not a recipe; go on with that run with --workdir={file.parent} "
            "and no --config, or give its recipe"
        )
    if file.exists() and file.stem not in known:
        raise UserError(f"--config={path} is no Python file; give a recipe, such as configs/quickstart.py")
    close = difflib.get_close_matches(file.stem, known, n=1)
    if close:
        raise UserError(f"there is no recipe {path}, did you mean --config=configs/{close[0]}.py{variant}?")
    raise UserError(f"there is no recipe {path}; choose one of: {', '.join(f'configs/{name}.py' for name in known)}")


@contextlib.contextmanager
def _blaming(path: str, file: Path):
    """Says in one sentence where and why the code of a recipe fails."""
    try:
        yield
    except USER_ERRORS:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"{path}, line {line}," if line else path
        reason = (error.msg if isinstance(error, SyntaxError) else str(error)).split("\n")[0]
        raise UserError(f"{where} fails with {type(error).__name__}: {reason}; correct the recipe") from error


def load(
    spec: str, overrides: Sequence[tuple[str, str]] = (), report: Callable[[str], None] = lambda message: None
) -> ConfigDict:
    """The config of `path[:variant]` with `overrides`, pairs of dotted key and text.

    `report` hears what follows from them.
    """
    path, colon, variant = spec.partition(":")
    file = _recipe_file(path, colon + variant)
    module = recipe_module(path)
    with _blaming(path, file):
        config = module.get_config(variant) if variant else module.get_config()
    if type(config) is not ConfigDict:
        raise UserError(
            f"{path} is no recipe: its get_config returns {_shown(config)}, not a config that can be changed; start "
            "from configs.common.base(), change it and return it"
        )
    check_keys(config, path, "start the recipe from configs.common.base()")
    return with_overrides(config, [*_following(config, dict(overrides), report), *overrides])


def _following(config: ConfigDict, given: dict[str, str], report: Callable[[str], None]) -> list[tuple[str, str]]:
    """Overrides that follow from those `given`: a recipe's other data belong to its training text, not to another."""
    if given.get("data.train", config.data.train) == config.data.train:
        return []
    others = {"data.validation": "", "data.test": "", "data.weights": "()"}
    left_out = {key: empty for key, empty in others.items() if key not in given and config.data[key.partition(".")[2]]}
    if left_out:
        named = " and ".join(f"{key} = {config.data[key.partition('.')[2]]}" for key in left_out)
        are = "are" if len(left_out) > 1 else "is"
        message = f"data.train is not the recipe's, so its {named} {are} left out"
        if "data.validation" in left_out:
            message += f": {config.data.holdout:.0%} of data.train is held out (data.holdout, data.validation)"
        report(message)
    return list(left_out.items())


def with_overrides(config: ConfigDict, overrides: Sequence[tuple[str, str]]) -> ConfigDict:
    """`config`, changed in place, with every number in its range, and locked."""
    with config.unlocked():
        for key, text in overrides:
            override(config, key, text)
    check_ranges(config)
    return config.lock()


def override(config: ConfigDict, key: str, text: str) -> None:
    """Sets `key` ("train.steps") to the value that `text` spells, of the type it has already."""
    node, walked = config, "config"
    *sections, last = key.split(".")
    for name in sections:
        if name not in node:
            raise _unknown(walked, name, node)
        node, walked = node[name], f"{walked}.{name}"
        if not isinstance(node, ConfigDict):
            raise UserError(f"{walked} is a value, not a section with keys; write --{walked}=VALUE")
    known = config.model if walked == "config.evaluate.model" else node  # which holds only what evaluation changes
    if last not in known:
        elsewhere = [path for path in flat(config) if path.endswith(f".{last}")] if walked == "config" else []
        if elsewhere:
            meant = " or ".join(f"--config.{path}={text}" for path in elsewhere)
            raise UserError(f"there is no config key config.{last}, did you mean {meant}?")
        raise _unknown(walked, last, known)
    if isinstance(known[last], ConfigDict):
        raise UserError(f"{walked}.{last} is a section; set one of its keys: {', '.join(known[last])}")
    value = parse_value(f"{walked}.{last}", text, known[last], _ranges(config).get(key))
    if last == "kind" and sections[-1] in OF_A_KIND and value != known.kind:
        raise UserError(_other_kind(walked, sections[-1], value, known.kind))
    node[last] = value


def _other_kind(walked: str, section: str, kind: str, ours: str) -> str:
    """What to say of an override that would have a section be of another kind than its keys are."""
    if kind not in OF_A_KIND[section]:
        return f"{walked}.kind is '{kind}'{nearest(kind, OF_A_KIND[section])}"
    other = next(name for name in recipes() if recipe_module(f"configs/{name}.py").get_config()[section].kind == kind)
    return (
        f"{walked}.kind is '{ours}', as the recipe's other keys of config.{section} have it, and cannot be '{kind}' "
        f"with those; give --config a recipe of that kind, such as configs/{other}.py"
    )


def _unknown(walked: str, name: str, node: ConfigDict) -> UserError:
    return UserError(f"there is no config key {walked}.{name}{nearest(name, list(node))}")


def parse_value(key: str, text: str, default, kept: Range | None = None):
    """`text`, the value given for `key`, as one of `default`'s type. Raises UserError if it is none.

    `kept` is the range of the key's numbers, if it has any.
    """
    if isinstance(default, str):
        return text
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if not isinstance(default, bool):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = text
    if type(value) is float and type(default) is int and value.is_integer():
        value = int(value)
    if type(value) is int and type(default) is float:
        value = float(value) if abs(value) < 10**300 else math.inf
    value = _tuples(value)
    if type(value) is not type(default):
        if isinstance(default, tuple):
            raise UserError(f"{key} is '{text}', which is not a tuple; {_as_tuple(key, value, default, kept)}")
        raise UserError(f"{key} is '{text}', {_not_a(default, text)}")
    return value


def _as_tuple(key: str, value, default: tuple, kept: Range | None) -> str:
    """What to write where `value` was, which is no tuple."""
    items = value.split(",") if isinstance(value, str) else [value]
    meant = tuple(item.strip() if isinstance(item, str) else item for item in items)
    if kept and kept.broken_by(meant):
        return f"it must be {kept.rule}"
    if any(isinstance(item, tuple) for item in default):
        meant = default[:1]
    return f'write --{key}="{meant}"'


def _shown(value) -> str:
    """A value of a recipe, cut to what a sentence holds; a section, whose own text has many lines, by its type."""
    return f"a {type(value).__name__}" if isinstance(value, ConfigDict) else f"{value!r:.60}"


def _not_a(default, text: str = "") -> str:
    """The end of a sentence about a value, written as `text`, that is not of the type of `default`."""
    percent = re.fullmatch(r"\s*([\d.]*\d)\s*%\s*", text)
    number = f"{float(percent[1]) / 100:g}" if percent and percent[1].count(".") < 2 else "1e-3"
    example = {bool: "true or false", int: "for example 100", float: f"for example {number}"}
    example |= {tuple: "for example \"('a', 'b')\"", str: "a text"}
    name = {ConfigDict: "section that can be changed"}.get(type(default), type(default).__name__)
    article = "an" if name[0] in "aeiou" else "a"
    return f"which is not {article} {name}; write {example.get(type(default), 'its keys')}"


def check_keys(config: ConfigDict, source: str, remedy: str) -> None:
    """Raises UserError unless `config`, from `source`, has exactly the declared keys, each with a value of its type.

    `config.evaluate.model` may hold any of the model's keys; `remedy` is what helps where a key is missing.
    """
    known = common.base()
    for section in OF_A_KIND:
        if section in config and isinstance(config[section], ConfigDict) and "kind" in config[section]:
            known[section] = _declared(config, section, source)

    def check(walked: str, given: ConfigDict, known: ConfigDict, partly: bool = False) -> None:
        for name in given:
            if name not in known:
                section = walked.rpartition(".")[2]
                built = f", whose config.{section}.kind is '{config[section].kind}'" if section in OF_A_KIND else ""
                raise UserError(f"{source}{built}: {_unknown(walked, name, known)}")
        for name, default in known.items():
            key = f"{walked}.{name}"
            if name not in given:
                if not partly:
                    raise UserError(f"{source} lacks {key}; {remedy}")
            elif type(given[name]) is not type(default):
                raise UserError(f"{source}: {key} is {_shown(given[name])}, {_not_a(default)}")
            elif isinstance(default, ConfigDict):
                some = key == "config.evaluate.model"
                check(key, given[name], config.model if some else default, some)

    check("config", config, known)


def _declared(config: ConfigDict, section: str, source: str) -> ConfigDict:
    """The defaults of a section of the kind that the config from `source` has. Raises UserError where there is none."""
    kinds, kind = OF_A_KIND[section], config[section].kind
    if kind not in kinds:
        raise UserError(f"{source}: config.{section}.kind is '{kind}'{nearest(str(kind), kinds)}")
    fitting = [other for other, declare in kinds.items() if set(config[section]) == set(declare())]
    if fitting and kind not in fitting:
        raise UserError(
            f"{source}: config.{section}.kind is '{kind}', but its other keys are those of kind '{fitting[0]}'; give "
            f"it the whole section, config.{section} = common.{kind}(), and then set its keys"
        )
    return kinds[kind]()


def _ranges(config: ConfigDict) -> dict[str, Range]:
    """The range of each number of `config`, by dotted key."""
    ranges = {f"{s}.{name}": r for s in OF_A_KIND for name, r in OF_A_KIND[s][config[s].kind].ranges.items()}
    evaluated = {f"evaluate.{key}": kept for key, kept in ranges.items() if key.startswith("model.")}
    return common.base.ranges | ranges | evaluated


def check_ranges(config: ConfigDict) -> None:
    """Raises UserError unless every number of `config` is in the range declared beside its default."""
    ranges = _ranges(config)
    for key, value in flat(config).items():
        rule = ranges[key].broken_by(value) if key in ranges else ""
        if rule:
            raise UserError(f"config.{key} = {value}; it must be {rule}")


def save(config: ConfigDict, workdir: str) -> None:
    """Writes the resolved config into the work folder, whole or not at all."""
    try:
        Workdir(workdir).write_config(json.dumps(config.to_dict(), indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"the work folder {workdir} cannot be written ({error.strerror}); choose another --workdir"
        ) from error


def check_folder(workdir: str) -> None:
    """Raises UserError where a work folder's name is that of a file."""
    if Path(workdir).is_file():
        raise UserError(f"--workdir={workdir} is a file, not a folder; give the folder of a run, or a new one's name")


def saved(workdir: str) -> ConfigDict:
    """The resolved config of a work folder."""
    check_folder(workdir)
    path = Workdir(workdir).config
    if not path.is_file():
        around = [str(folder) for folder in Path(workdir).parents if Workdir(folder).config.is_file()]
        remedy = f"did you mean --workdir={around[0]}?" if around else "give the --workdir of a `pretrain train` run"
        raise UserError(f"{workdir} is not a work folder (it has no {CONFIG}); {remedy}")
    try:
        config = ConfigDict(_tuples(json.loads(path.read_text())))
    except (ValueError, AttributeError) as error:  # no JSON, or not of an object
        raise UserError(f"{path} is not readable JSON ({error}); restore it or choose another --workdir") from error
    check_keys(config, str(path), "restore the file, or use the version of Longhaul that wrote it")
    return with_overrides(config, ())


def _tuples(value):
    """JSON's lists as the tuples that every sequence of a config is."""
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def flat(config, prefix: str = "") -> dict:
    """{"train.steps": 200, ...}"""
    rows = {}
    for name, value in config.items():
        if hasattr(value, "items"):
            rows |= flat(value, f"{prefix}{name}.")
        else:
            rows[prefix + name] = value
    return rows


def every_key() -> list[str]:
    """The dotted keys of all configs, of whatever kinds."""
    keys = [f"{s}.{name}" for s, kinds in OF_A_KIND.items() for declared in kinds.values() for name in declared()]
    return list(dict.fromkeys([*flat(common.base()), *keys]))


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """What `new` would change in a run that began as `old`, beyond the keys that a run may change."""
    a, b = flat(old), flat(new)
    keys = [k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]
    lengths = {keys_of.get("schedule.decay_steps") or keys_of.get("train.steps") for keys_of in (a, b)}
    if len(lengths) == 1:  # the same schedule, whichever key says so
        keys = [k for k in keys if k != "schedule.decay_steps"]
    fixed = [k for k in keys if not any(k == f or k.startswith(f + ".") for f in FREE)]
    return [f"{k} ({a.get(k, 'absent')} there, {b.get(k, 'absent')} here)" for k in fixed]


def has_checkpoints(workdir: str) -> bool:
    """Whether the work folder holds any checkpoint, whole or not."""
    return any(path.name.isdigit() for path in Workdir(workdir).checkpoints.glob("*"))


def check_same_run(workdir: str, config: ConfigDict) -> None:
    """Raises if the work folder belongs to a run of another config."""
    file = Workdir(workdir).config
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is no file; move it away, restore the run's own, or choose another --workdir")
    if not file.exists():
        if has_checkpoints(workdir):
            raise UserError(
                f"{workdir} holds checkpoints, but not the {CONFIG} that they were made with; restore it, or begin "
                "at update 0 with --fresh=NAME, which keeps them in earlier/NAME"
            )
        return
    changed = differences(saved(workdir), config)
    if changed:
        shown = "; ".join(changed[:6]) + (f"; and {len(changed) - 6} more" if len(changed) > 6 else "")
        raise UserError(
            f"{workdir} belongs to a run of another config, which differs in {shown}; choose another --workdir, or "
            "undo the change"
        )
