"""Which row each example is: mixing of sources, and shuffling, in closed form.

Both map an example's number to a source and a row without the examples before it, so any batch can be made first.
"""

import functools
from collections.abc import Sequence

import numpy as np

from input_pipeline.errors import DataError

SCALE = 1 << 20  # mixing shares are whole multiples of 2^-20
ROUNDS = 4  # of Grain's Feistel cipher, which permutes the rows of an epoch


def mixing_weights(
    sizes: Sequence[tuple[int, int]], weights: Sequence[float], temperature: float, cap: int
) -> np.ndarray:
    """Each source's share of the rows: float64, positive, summing to 1.

    sizes: (rows, examples) of each source. With `weights` these are the shares; else each source's share of examples is
    r_m = min(e_m, cap)^(1/temperature), renormalised (Raffel et al. 2019, section 3.5.2). Errors: DataError for weights
    that do not fit the sources.
    """
    rows, examples = np.array(sizes, np.float64).T
    if len(weights):
        if len(weights) != len(sizes) or temperature != 1 or cap:
            raise DataError(
                f"data.weights={tuple(weights)}: data.train has {len(sizes)} sources. Give one for each, without "
                "data.temperature and data.cap."
            )
        amounts, power, rows_per_example = np.array(weights, np.float64), 1.0, 1.0
    else:
        # A row of packed pairs holds several examples, so shares of examples are turned into shares of rows.
        amounts, power, rows_per_example = np.minimum(examples, cap or np.inf), 1 / temperature, rows / examples
    # Divided by the largest first, so that no power overflows; no source's share rounds to 0.
    shares = (amounts / amounts.max()) ** power * rows_per_example
    shares = np.maximum(shares, np.finfo(np.float64).tiny)
    return shares / shares.sum()


class Mixture:
    """Assigns each example to a source, in fixed proportions, as evenly as whole examples can be.

    The first source takes floor((g + 1) w) - floor(g w) of example g; the others share the rest likewise. So the
    number of a source's examples before any g is known in closed form, and grows one by one.
    """

    def __init__(self, weights: np.ndarray):
        # share[m]: of source m among sources m, m + 1, ..., in 2^-20ths, so that arithmetic is exact in int64.
        rest = np.cumsum(weights[::-1])[::-1]
        shares = np.rint(SCALE * weights[:-1] / rest[:-1]).astype(int)
        self._shares = np.clip(shares, 1, SCALE - 1).tolist()

    def locate(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, number of that source's examples before it) of `examples`: int64 [n] each, examples < 2^42."""
        source = np.full(examples.shape, len(self._shares), np.int64)
        left = examples.copy()  # number of the example among the sources that are left
        counts = np.zeros_like(left)
        unassigned = np.ones(examples.shape, bool)
        for index, share in enumerate(self._shares):
            # floor(g w) in exact integers: g < 2^42 and share <= 2^20 stay below 2^63.
            before = left * share // SCALE
            mine = unassigned & ((left + 1) * share // SCALE > before)
            source[mine], counts[mine] = index, before[mine]
            unassigned &= ~mine
            left = left - before
        return source, np.where(unassigned, left, counts)


def shuffle_rows(indices: np.ndarray, size: int, seed: int, stream: int) -> np.ndarray:
    """The row, below `size`, at each of `indices` (int64 [n], unbounded); each epoch is its own permutation.

    The permutation is a function of (seed, stream, epoch).
    """
    from grain.experimental import index_shuffle  # takes seconds to import, which `prepare` does not need

    # A Feistel cipher permutes 0 .. size - 1 without a table, so any place costs the same.
    epochs, places = np.divmod(indices, size)
    pairs = zip(epochs.tolist(), places.tolist(), strict=True)
    return np.array([index_shuffle(place, size - 1, hash_key(seed, stream, epoch), ROUNDS) for epoch, place in pairs])


@functools.lru_cache(1 << 10)
def hash_key(*parts: int) -> int:
    """32 random bits as a function of `parts`."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
