"""Exceptions for a user's mistake in data or tokenizer settings."""


class DataError(ValueError):
    """Unusable data or tokenizer; the message names the setting, the problem and the remedy."""


class UnwritableError(DataError):
    """A folder without room or permission."""
