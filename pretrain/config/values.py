"""The text of a value, read as one of the type that a key has already."""

import ast
import math
import re

from ml_collections import ConfigDict

from configs.ranges import Range
from pretrain.errors import UserError


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
    value = tuples(value)
    if type(value) is not type(default):
        if isinstance(default, tuple):
            raise UserError(f"{key} is '{text}', which is not a tuple; {_as_tuple(key, value, default, kept)}")
        raise UserError(f"{key} is '{text}', {not_a(default, text)}")
    return value


def _as_tuple(key: str, value, default: tuple, kept: Range | None) -> str:
    """What to write where `value` was, which is no tuple."""
    items = value.strip("()[] ").split(",") if isinstance(value, str) else [value]  # a shell may have taken the quotes
    meant = tuple(item.strip(" '\"") if isinstance(item, str) else item for item in items if item != "")
    if kept and kept.broken_by(meant):
        return f"it must be {kept.rule}"
    if any(isinstance(item, tuple) for item in default):
        meant = default[:1]
    return f'write --{key}="{meant}"'


def shown(value) -> str:
    """A value of a recipe, cut to what a sentence holds; a section, whose own text has many lines, by its type."""
    return f"a {type(value).__name__}" if isinstance(value, ConfigDict) else f"{value!r:.60}"


def not_a(default, text: str = "") -> str:
    """The end of a sentence about a value, written as `text`, that is not of the type of `default`."""
    if type(default) is float and text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return "which is not a finite number; write for example 1e-3"
    percent = re.fullmatch(r"\s*([\d.]*\d)\s*%\s*", text)
    number = f"{float(percent[1]) / 100:g}" if percent and percent[1].count(".") < 2 else "1e-3"
    example = {bool: "true or false", int: "for example 100", float: f"for example {number}"}
    example |= {tuple: "for example \"('a', 'b')\"", str: "a text"}
    name = {ConfigDict: "section that can be changed"}.get(type(default), type(default).__name__)
    article = "an" if name[0] in "aeiou" else "a"
    return f"which is not {article} {name}; write {example.get(type(default), 'its keys')}"


def tuples(value):
    """JSON's lists as the tuples that every sequence of a config is."""
    if isinstance(value, dict):
        return {name: tuples(item) for name, item in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, (list, tuple)) else value
