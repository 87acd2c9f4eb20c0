"""Which source each example is of: shares by weights or by temperature, taken as evenly as whole examples can be."""

from collections.abc import Sequence

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.packing.index_cache import counted

SCALE = 1 << 20  # mixing weights are whole multiples of 1 / SCALE


def mixing_weights(
    sizes: Sequence[tuple[int, int]], weights: Sequence[float], temperature: float, cap: int
) -> np.ndarray:
    """Each source's share of the rows, float64, summing to 1; `sizes` are the rows and the examples of each.

    By `weights` where given; else such that its share of the examples is r_m = min(e_m, cap)^(1/temperature),
    renormalised (Raffel et al. 2019, section 3.5.2), whatever number of them shares a row. No share is 0.
    Errors: DataError for weights that do not fit the sources.
    """
    rows, examples = np.array(sizes, np.float64).T
    if len(weights):
        if len(weights) != len(sizes):
            numbers, sources = counted(len(weights), "number"), counted(len(sizes), "source")
            raise DataError(f"data.weights has {numbers} for {sources}; give one each, or none")
        if temperature != 1 or cap:
            raise DataError("data.weights excludes data.temperature and data.cap, which mix by size; unset one")
        amounts, power, in_rows = np.array(weights, np.float64), 1.0, 1.0
    else:
        amounts, power, in_rows = np.minimum(examples, cap or np.inf), 1 / temperature, rows / examples
    shares = (amounts / amounts.max()) ** power * in_rows  # the largest is 1, so that nothing overflows
    shares = np.maximum(shares, np.finfo(np.float64).tiny)
    return shares / shares.sum()


class Mixture:
    """Assigns every example to a source in fixed proportions, as evenly as whole examples can be.

    The first source takes floor((g + 1) w) - floor(g w) of example g, the others share what is left in the
    same way, so that each source's own count is known in closed form and grows one by one.
    """

    def __init__(self, weights: np.ndarray):
        rest = np.cumsum(weights[::-1])[::-1]
        shares = np.rint(SCALE * weights[:-1] / rest[:-1]).astype(int)
        self._shares = np.clip(shares, 1, SCALE - 1).tolist()  # no source is left out

    def locate(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, count of that source's examples before it), int64 [n] each, of `examples` (int64 [n] below 2^42)."""
        source = np.full(examples.shape, len(self._shares), np.int64)
        left = examples.copy()
        counts = np.zeros_like(left)
        open_ = np.ones(examples.shape, bool)
        for index, share in enumerate(self._shares):
            before = left * share // SCALE
            taken = open_ & ((left + 1) * share // SCALE > before)
            source[taken], counts[taken] = index, before[taken]
            open_ &= ~taken
            left = left - before
        return source, np.where(open_, left, counts)
