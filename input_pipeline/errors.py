"""The one exception of this package that is a user's mistake rather than a bug."""


class DataError(ValueError):
    """Data or tokenizer that cannot be used: the message names it and gives the remedy in one sentence."""
