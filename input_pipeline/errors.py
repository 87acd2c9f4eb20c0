"""The exceptions of this package that are a user's mistake rather than a bug."""

from pathlib import Path

LENGTH = "data.length (in evaluation --length or evaluate.length, where one is given)"  # what sets the length of rows


class DataError(ValueError):
    """Data or tokenizer that cannot be used: the message names it and gives the remedy in one sentence."""


class UnwritableError(DataError):
    """A place that cannot be written, for want of room or of leave, and `key`, which names another."""

    def __init__(self, where: Path, why: str, key: str):
        super().__init__(f"cannot write {where}: {why}; make room or point {key} to another folder")
        self.where, self.why, self.key = where, why, key

    def __reduce__(self):
        """Pickled as what it is made of: a process that reads, or tokenises, may raise it."""
        return UnwritableError, (self.where, self.why, self.key)
