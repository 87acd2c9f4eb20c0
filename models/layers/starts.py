"""How the matrices and tables of a whole model start: the schemes of published models, by name."""

import math
from collections.abc import Callable
from typing import NamedTuple

from models.layers.init import normal, uniform


class Start(NamedTuple):
    """The initialiser of matrices, and the standard deviations that it is told.

    matrix: of (a scale, a matrix's inputs, its outputs); table: of (the scale, the width of a table's rows), which are
    normal in every scheme.
    """

    initialiser: Callable
    matrix: Callable[[float, int, int], float]
    table: Callable[[float, int], float]


STARTS = {
    # T5 (Raffel et al. 2019): rows so wide that a norm, and a head's scale, bring them back.
    "fan_in": Start(normal, lambda scale, inputs, outputs: scale * inputs**-0.5, lambda scale, width: scale),
    # BERT's kin, BART among them: one standard deviation for all.
    "normal": Start(normal, lambda scale, inputs, outputs: scale, lambda scale, width: scale),
    # The original Transformer: uniform by the mean of inputs and outputs (Glorot and Bengio 2010); rows to which
    # sqrt(width) gives variance 1.
    "glorot": Start(
        uniform,
        lambda scale, inputs, outputs: scale * math.sqrt(2 / (inputs + outputs)),
        lambda scale, width: scale * width**-0.5,
    ),
}
