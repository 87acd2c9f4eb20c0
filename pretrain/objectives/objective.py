"""What objectives have in common, as most of them have it (`__init__.py` lists all that they offer)."""

import math
from collections.abc import Mapping


class Objective:
    """It predicts a part of a text, writes nothing that a batch could judge, and has no teacher; nothing smooths it."""

    bits = None
    decoded = ()
    ratios: Mapping[str, tuple[str, str]] = {}
    smooths = False
    teacher = None


def perplexity(nats: float) -> float:
    """e to the power of `nats` a token; infinite where that is beyond the largest float."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
