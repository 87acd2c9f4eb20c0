"""What a model starts to write from."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Prompts(NamedTuple):
    """For each of some texts the ids that come first, and the features that a model reads besides, a row for each.

    `continued`: what is written goes on with the text itself.
    """

    begun: list[np.ndarray]
    source: Mapping[str, np.ndarray]
    continued: bool
