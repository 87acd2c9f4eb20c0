"""What objectives have in common, as most of them have it (`__init__.py` lists all that they offer)."""

from collections.abc import Mapping


class Objective:
    """It predicts a part of a text, writes nothing that a batch could judge, and has no teacher."""

    bits = None
    decoded = ()
    ratios: Mapping[str, tuple[str, str]] = {}
    teacher = None
