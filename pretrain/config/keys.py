"""The keys of a config: which there are, of which type each is, and in which range."""

from ml_collections import ConfigDict

import models
from configs import common
from configs.ranges import Range
from pretrain.config.values import not_a, shown
from pretrain.elsewhere import KEYS, OF_CONFIGS
from pretrain.errors import UserError, nearest

# Sections of which there are several, by their kind.
OF_A_KIND = {"model": common.MODELS, "objective": common.OBJECTIVES}

PARTLY = ("config.evaluate.model", "config.distill.model")  # which hold any of the model's keys: what is otherwise


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


def scored_length(config) -> int:
    """How many tokens a row of evaluation has: config.evaluate.length, of which 0 means config.data.length."""
    return config.evaluate.length or config.data.length


def scored_key(config) -> str:
    """The key that says so."""
    return "config.evaluate.length" if config.evaluate.length else "config.data.length"


def check_keys(config: ConfigDict, source: str, remedy: str) -> None:
    """Raises UserError unless `config`, from `source`, has exactly the declared keys, each with a value of its type.

    Those of `PARTLY` may hold any of the model's keys; `remedy` is what helps where a key is missing.
    """
    known = common.base()
    for section in OF_A_KIND:
        if section in config and isinstance(config[section], ConfigDict) and "kind" in config[section]:
            known[section] = _declared(config, section, source)

    def check(walked: str, given: ConfigDict, known: ConfigDict, partly: bool = False) -> None:
        for name in given:
            if name not in known:
                section = walked.rpartition(".")[2]
                kind = given.get("kind") if section in OF_A_KIND else None
                built = f", whose config.{section}.kind is '{kind}'" if kind else ""
                raise UserError(f"{source}{built}: {unknown(walked, name, known)}")
        for name, default in known.items():
            key = f"{walked}.{name}"
            if name not in given:
                if not partly:
                    raise UserError(f"{source} lacks {key}; {remedy}")
            elif type(given[name]) is not type(default):
                raise UserError(f"{source}: {key} is {shown(given[name])}, {not_a(default)}")
            elif isinstance(default, ConfigDict):
                some = key in PARTLY
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


def ranges_of(config: ConfigDict) -> dict[str, Range]:
    """The range of each number of `config`, by dotted key."""
    ranges = {f"{s}.{name}": r for s in OF_A_KIND for name, r in OF_A_KIND[s][config[s].kind].ranges.items()}
    partly = {f"{of}.{key}": kept for of in ("evaluate", "distill") for key, kept in ranges.items() if "model." in key}
    return common.base.ranges | ranges | partly


def check_ranges(config: ConfigDict) -> None:
    """Raises UserError unless every number of `config` is in the range declared beside its default."""
    ranges = ranges_of(config)
    for key, value in flat(config).items():
        rule = ranges[key].broken_by(value) if key in ranges else ""
        if rule:
            raise UserError(f"config.{key} = {value}; it must be {rule}")


def unknown(walked: str, name: str, node: ConfigDict) -> UserError:
    """The mistake of a key `name` that the section `node`, reached by `walked`, has not."""
    why = models.why_absent(node.kind, name) if walked == "config.model" and "kind" in node else ""
    several = sorted(key for key in node if key.startswith(f"{name}_"))
    if why:
        end = f" of a model of kind '{node.kind}'{why}"
    elif name in KEYS:
        end = f", did you mean config.{KEYS[name]}?"
    elif name in OF_CONFIGS:
        end = f"; {OF_CONFIGS[name]}"
    elif len(several) > 1:
        end = f"; choose one of: {', '.join(several)}"
    else:
        end = nearest(name, list(node))
    return UserError(f"there is no config key {walked}.{name}{end}")
