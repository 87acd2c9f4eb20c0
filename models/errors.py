"""The one exception of this package that is a user's mistake rather than a bug."""


class ModelError(ValueError):
    """Sizes or options that cannot be: the message names field, value, rule and remedy in one sentence."""
