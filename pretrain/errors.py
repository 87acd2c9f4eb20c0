"""Exceptions that the program prints as one sentence, and helpers that word them."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from configs.common import ConfigError
from input_pipeline.errors import DataError
from models.errors import ModelError


class UserError(ValueError):
    """A command that cannot be carried out: the message names key, problem and remedy. Exit code 2."""


class FaultError(Exception):
    """A machine that fails or computes wrongly; no user's mistake. Exit code 69."""


USER_ERRORS = (UserError, ModelError, DataError, ConfigError)


def nearest(name: str, choices: Iterable[str], before: str = "") -> str:
    """The end of a message about an unknown name: the nearest choice, else all of them.

    `before` is written in front of each choice, such as the dashes of a flag.
    """
    choices = sorted(choices)
    lower = {choice.lower(): choice for choice in choices}
    if close := difflib.get_close_matches(name.lower(), lower, n=1):
        return f". Did you mean '{before}{lower[close[0]]}'?"
    return f". Choose one of: {', '.join(before + choice for choice in choices)}."


def lookup(key: str, name: str, table: Mapping[str, Any]) -> Any:
    """`table[name]`. Errors: UserError that names the `key` of an unknown name, and the nearest choice."""
    if name not in table:
        raise UserError(f"{key}='{name}' is unknown{nearest(name, table)}")
    return table[name]


def join_some(items: Sequence[str], most: int, joint: str = ", ") -> str:
    """The first `most` items, joined, with the number of those left out."""
    more = f"{joint}and {len(items) - most} more" if len(items) > most else ""
    return joint.join(items[:most]) + more


def reason(error: Exception) -> str:
    """The first line of an error, or the operating system's words with the file that they are about."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__
