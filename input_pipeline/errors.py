"""Exceptions for a user's mistake in data or tokenizer settings."""

from pathlib import Path


class DataError(ValueError):
    """Unusable data or tokenizer; the message names the setting, the problem and the remedy."""


class UnwritableError(DataError):
    """A folder without room or permission; `key` is the setting that names it."""

    def __init__(self, where: Path, why: str, key: str):
        super().__init__(f"{key}: cannot write {where}: {why}. Make room or choose another folder.")
        self._arguments = where, why, key

    def __reduce__(self):
        return UnwritableError, self._arguments  # pickled when a worker process raises it
