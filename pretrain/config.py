"""Reading configs: recipe files, variants, dotted overrides, and the resolved copy in a work folder.

`--config=configs/gpt2.py:medium --config.train.steps=200`, the syntax of ml_collections; every mistake
in it is one sentence that names the nearest right word.
"""

import ast
import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from pretrain.errors import UserError, nearest

RECIPES = Path(__file__).resolve().parent.parent / "configs"
RESOLVED = "config.json"

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


def recipes() -> dict[str, Path]:
    """The recipe files, by name."""
    return {p.stem: p for p in sorted(RECIPES.glob("*.py")) if p.stem not in ("__init__", "common")}


def recipe_module(path: str):
    """The Python module of a recipe file."""
    file = Path(path)
    if not file.is_file():
        known = {f"configs/{name}.py": p for name, p in recipes().items()}
        if path not in known:
            raise UserError(f"there is no config file {path}{nearest(path, known)}")
        file = known[path]
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UserError(
            f"{path} is no recipe: it has no function get_config(variant); see configs/quickstart.py for one"
        )
    return module


def load(spec: str, overrides: Sequence[tuple[str, str]] = ()) -> ConfigDict:
    """The config of `path[:variant]` with `overrides`, pairs of dotted key and text."""
    path, _, variant = spec.partition(":")
    config = recipe_module(path).get_config(variant) if variant else recipe_module(path).get_config()
    return with_overrides(config, overrides)


def with_overrides(config: ConfigDict, overrides: Sequence[tuple[str, str]]) -> ConfigDict:
    """`config`, changed in place and locked."""
    with config.unlocked():
        for key, text in overrides:
            override(config, key, text)
    return config.lock()


def override(config: ConfigDict, key: str, text: str) -> None:
    """Sets `key` ("train.steps") to the value that `text` spells, of the type it has already."""
    node, walked = config, "config"
    *sections, last = key.split(".")
    for name in sections:
        if name not in node or not isinstance(node[name], ConfigDict):
            raise _unknown(walked, name, node)
        node, walked = node[name], f"{walked}.{name}"
    known = config.model if walked == "config.evaluate.model" else node  # which holds only what evaluation changes
    if last not in known:
        raise _unknown(walked, last, known)
    if isinstance(known[last], ConfigDict):
        raise UserError(f"{walked}.{last} is a section; set one of its keys: {', '.join(known[last])}")
    node[last] = _parse(f"{walked}.{last}", text, known[last])


def _unknown(walked: str, name: str, node: ConfigDict) -> UserError:
    return UserError(f"there is no config key {walked}.{name}{nearest(name, list(node))}")


def _parse(key: str, text: str, default):
    """`text` as a value of `default`'s type."""
    kind = type(default).__name__
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() in ("true", "false", "1", "0"):
            return text.lower() in ("true", "1")
        raise UserError(f"{key} is '{text}', which is not a bool; write true or false")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if isinstance(default, float) and type(value) in (int, float):
        return float(value)
    if isinstance(default, int) and (type(value) is int or (type(value) is float and value.is_integer())):
        return int(value)
    if isinstance(default, tuple) and isinstance(value, (tuple, list)):
        return _tuples(value)
    example = {"int": "100", "float": "1e-3", "tuple": "\"('a', 'b')\""}.get(kind, str(default))
    raise UserError(
        f"{key} is '{text}', which is not {'an' if kind[0] in 'aio' else 'a'} {kind}; write for example {example}"
    )


def save(config: ConfigDict, workdir: str) -> None:
    """Writes the resolved config into the work folder, whole or not at all."""
    folder = Path(workdir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{RESOLVED}.{os.getpid()}"
        partial.write_text(json.dumps(config.to_dict(), indent=2) + "\n")
        os.replace(partial, folder / RESOLVED)
    except OSError as error:
        raise UserError(
            f"the work folder {workdir} cannot be written ({error.strerror}); choose another --workdir"
        ) from error


def saved(workdir: str) -> ConfigDict:
    """The resolved config of a work folder."""
    path = Path(workdir) / RESOLVED
    if not path.is_file():
        raise UserError(
            f"{workdir} is not a work folder (it has no {RESOLVED}); give the --workdir of a `pretrain train` run"
        )
    try:
        return ConfigDict(_tuples(json.loads(path.read_text()))).lock()
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({error}); restore it or choose another --workdir") from error


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


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """What `new` would change in a run that began as `old`, beyond the keys that a run may change."""
    a, b = flat(old), flat(new)
    keys = [k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]
    fixed = [k for k in keys if not any(k == f or k.startswith(f + ".") for f in FREE)]
    return [f"{k} ({a.get(k, 'absent')} there, {b.get(k, 'absent')} here)" for k in fixed]


def check_same_run(workdir: str, config: ConfigDict) -> None:
    """Raises if the work folder belongs to a run of another config."""
    if not (Path(workdir) / RESOLVED).is_file():
        return
    changed = differences(saved(workdir), config)
    if changed:
        shown = "; ".join(changed[:6]) + (f"; and {len(changed) - 6} more" if len(changed) > 6 else "")
        raise UserError(
            f"{workdir} belongs to a run of another config, which differs in {shown}; choose another --workdir, or "
            "undo the change"
        )
