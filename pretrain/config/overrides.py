"""The config of `--config=configs/gpt2.py:medium --config.train.steps=200`, the syntax of ml_collections."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_dict import RequiredValueError

from pretrain.config.keys import OF_A_KIND, PARTLY, check_keys, check_ranges, flat, ranges_of, unknown
from pretrain.config.recipe import blaming, recipe_config, recipe_file, recipe_module, recipes
from pretrain.config.values import parse_value, shown
from pretrain.elsewhere import COMPUTED, KERNELS, OBJECTIVES
from pretrain.errors import UserError, nearest


def load(
    spec: str, overrides: Sequence[tuple[str, str]] = (), report: Callable[[str], None] = lambda message: None
) -> ConfigDict:
    """The config of `path[:variant]` with `overrides`, pairs of dotted key and text.

    `report` hears what follows from them.
    """
    path, colon, variant = spec.partition(":")
    file = recipe_file(path, colon + variant)
    config = recipe_config(path, variant)
    if type(config) is not ConfigDict:
        raise UserError(
            f"{path} is no recipe: its get_config returns {shown(config)}, not a config that can be changed; start "
            "from configs.common.base(), change it and return it"
        )
    with blaming(path, file):  # what is computed from what was open
        _fill(config, path, dict(overrides))
    check_keys(config, path, "start the recipe from configs.common.base()")
    return with_overrides(config, overrides, report)


def _fill(config: ConfigDict, path: str, given: Mapping[str, str]) -> None:
    """Sets what a recipe leaves open, by ml_collections' placeholders, where an override has it.

    Raises UserError for what is open still.
    """
    references = dict(_references(config))
    for key, reference in references.items():
        if key in given and _is_open(reference):
            reference.set(parse_value(f"config.{key}", given[key], reference.get_type()()))
    left = [key for key, reference in references.items() if _is_open(reference)]
    if left:  # the first that is not computed from another
        key = min(left, key=lambda key: len(references[key]._ops))
        raise UserError(f"{path} leaves config.{key} open; give it by --config.{key}=VALUE")


def _references(section: ConfigDict, prefix: str = "", within: tuple = ()) -> Iterator[tuple[str, FieldReference]]:
    """The values of a config that are references, by dotted key; `within` are the sections that it lies in."""
    for name, value in section.items(preserve_field_references=True):
        if isinstance(value, FieldReference):
            yield prefix + name, value
        elif isinstance(value, ConfigDict) and not any(value is other for other in within):
            yield from _references(value, f"{prefix}{name}.", (*within, section))


def _is_open(reference: FieldReference) -> bool:
    try:
        return reference.get() is None
    except RequiredValueError:
        return True


def _following(config: ConfigDict, given: dict[str, str]) -> tuple[dict[str, str], str]:
    """Overrides that follow from those `given`, and what is said of them.

    A recipe's other data belong to its training text, not to another.
    """
    if given.get("data.train", config.data.train) == config.data.train:
        return {}, ""
    others = {"data.validation": "", "data.test": "", "data.weights": "()"}
    left_out = {key: empty for key, empty in others.items() if key not in given and config.data[key.partition(".")[2]]}
    named = " and ".join(f"{key} = {config.data[key.partition('.')[2]]}" for key in left_out)
    are = "are" if len(left_out) > 1 else "is"
    return left_out, f"data.train is not the recipe's, so its {named} {are} left out" if left_out else ""


def with_overrides(
    config: ConfigDict, overrides: Sequence[tuple[str, str]], report: Callable[[str], None] = lambda message: None
) -> ConfigDict:
    """`config`, changed in place, with every number in its range, and locked; `report` hears what follows from that."""
    following, said = _following(config, dict(overrides))
    with config.unlocked():
        for key, text in [*following.items(), *overrides]:
            override(config, key, text)
    check_ranges(config)
    if "data.validation" in following and config.data.holdout:
        said += f": {config.data.holdout:.0%} of data.train is held out (data.holdout, data.validation)"
    if said:
        report(said)
    return config.lock()


def override(config: ConfigDict, key: str, text: str) -> None:
    """Sets `key` ("train.steps") to the value that `text` spells, of the type it has already."""
    node, walked = config, "config"
    *sections, last = key.split(".")
    for name in sections:
        if name not in node:
            raise unknown(walked, name, node)
        node, walked = node[name], f"{walked}.{name}"
        if not isinstance(node, ConfigDict):
            raise UserError(f"{walked} is a value, not a section with keys; write --{walked}=VALUE")
    known = config.model if walked in PARTLY else node  # which hold only what is otherwise
    if last not in known:
        elsewhere = [path for path in flat(config) if path.endswith(f".{last}")] if walked == "config" else []
        if elsewhere:
            meant = " or ".join(f"--config.{path}={text}" for path in elsewhere)
            raise UserError(f"there is no config key config.{last}, did you mean {meant}?")
        raise unknown(walked, last, known)
    if isinstance(known[last], ConfigDict):
        keys = config.model if f"{walked}.{last}" in PARTLY else known[last]
        raise UserError(f"{walked}.{last} is a section; set one of its keys: {', '.join(keys)}")
    if key == "model.attention" and text.lower() in KERNELS:
        raise UserError(f"config.model.attention is '{text}', and {COMPUTED}")
    value = parse_value(f"{walked}.{last}", text, known[last], ranges_of(config).get(key))
    if last == "kind" and sections[-1] in OF_A_KIND and value != known.kind:
        raise UserError(_other_kind(walked, sections[-1], value, known.kind))
    node[last] = value


def _other_kind(walked: str, section: str, kind: str, ours: str) -> str:
    """What to say of an override that would have a section be of another kind than its keys are."""
    if kind not in OF_A_KIND[section]:
        meant = OBJECTIVES.get(kind) if section == "objective" else None
        end = f", did you mean '{meant}'?" if meant else nearest(kind, OF_A_KIND[section])
        return f"{walked}.kind is '{kind}'{end}"
    others = [f"configs/{name}.py" for name in recipes()]
    others = [path for path in others if recipe_module(path).get_config()[section].kind == kind]
    return (
        f"{walked}.kind is '{ours}', as the recipe's other keys of config.{section} have it, and cannot be '{kind}' "
        f"with those; give --config a recipe of that kind: {', '.join(others)}"
    )
