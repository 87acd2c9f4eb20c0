"""Which row comes when: a permutation in closed form for each epoch, so that no row needs those before it."""

import functools

import numpy as np

ROUNDS = 4  # of the permuting cipher


def shuffled(indices: np.ndarray, size: int, seed: int, stream: int) -> np.ndarray:
    """The row, of `size`, that comes at each of `indices` (int64 [n], from 0 without end).

    Every epoch is a permutation of its own, drawn from (seed, stream, epoch).
    """
    from grain.experimental import index_shuffle  # seconds, which prepare need not spend

    epochs, places = np.divmod(indices, size)
    pairs = zip(epochs.tolist(), places.tolist(), strict=True)
    return np.array([index_shuffle(place, size - 1, key(seed, stream, epoch), ROUNDS) for epoch, place in pairs])


@functools.lru_cache(1 << 10)
def key(*parts: int) -> int:
    """32 random bits that are a function of `parts`."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
