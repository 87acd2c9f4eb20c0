"""Every exception that is a user's mistake, or a machine's fault: the program prints its one sentence and exits."""

import difflib
import os
import re
from collections.abc import Iterable, Sequence

from configs.common import ConfigError
from input_pipeline.away import system_code
from input_pipeline.errors import DataError
from models.errors import ModelError


class UserError(ValueError):
    """A command that cannot be carried out: the message names what, why and the remedy in one sentence."""


class FaultError(Exception):
    """A machine that fails, and no one's mistake: the message says in one sentence which and what to do."""


LONGEST, BEGINNING = 200, 60  # characters of a cause that are told; of a longer one its beginning and its end
BEGUN = 3  # letters of a name, at least, that may stand for all of it
USER_ERRORS = (UserError, ModelError, DataError, ConfigError)


def nearest(name: str, choices: Iterable[str], before: str = "") -> str:
    """The end of an "unknown name" sentence: `, did you mean 'x'?`, or the list of choices if none is close.

    Small and capital letters count as the same, and what a single choice begins with means that one. `before` is
    what is written before each name, such as the dashes of a flag.
    """
    choices = sorted(choices)
    small = {choice.lower(): choice for choice in choices}
    begun = [choice for choice in small if len(name) >= BEGUN and choice.startswith(name.lower())]
    close = begun if len(begun) == 1 else difflib.get_close_matches(name.lower(), small, n=1)
    if close:
        return f", did you mean '{before}{small[close[0]]}'?"
    return f"; choose one of: {', '.join(before + choice for choice in choices)}"


def listed(things: Sequence[str], most: int, joint: str = ", ") -> str:
    """At most so many of some things, joined to words that end with how many more there are."""
    more = f"{joint.rstrip(' ,')} and {len(things) - most} more" if len(things) > most else ""
    return joint.join(things[:most]) + more


def reason(error: Exception) -> str:
    """The cause of an error in few words; TensorStore buries it, or the operating system's code, in a long message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if code := system_code(error):
        return os.strerror(code)
    lines = re.sub(r" \[[a-z_ ]+='.*", "", str(error).strip(), flags=re.DOTALL).splitlines()
    if not lines:
        return type(error).__name__
    return lines[0] if len(lines[0]) <= LONGEST else f"{lines[0][:BEGINNING]} ... {lines[0][BEGINNING - LONGEST :]}"
