"""Every exception that is a user's mistake: the program prints its one sentence and exits with code 2."""

import difflib
from collections.abc import Iterable

from configs.common import ConfigError
from input_pipeline.errors import DataError
from models.errors import ModelError


class UserError(ValueError):
    """A command that cannot be carried out: the message names what, why and the remedy in one sentence."""


USER_ERRORS = (UserError, ModelError, DataError, ConfigError)


def nearest(name: str, choices: Iterable[str]) -> str:
    """The end of an "unknown name" sentence: `, did you mean 'x'?`, or the list of choices if none is close."""
    choices = sorted(choices)
    close = difflib.get_close_matches(name, choices, n=1)
    if close:
        return f", did you mean '{close[0]}'?"
    return f"; choose one of: {', '.join(choices)}"
