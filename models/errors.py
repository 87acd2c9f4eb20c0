"""The exception for impossible sizes and options."""


class ModelError(ValueError):
    """A user's mistake in sizes or options; the message is `key=value: problem. Fix.`"""
