"""Random numbers as a function of a key and a place, whichever rows are drawn together, on whichever host.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), whose n-th
number is a hash of its seed and n: a row's seed is a hash of its key and of what is drawn.
"""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # odd, 2^64 by the golden ratio
PLACE_BITS = np.uint64(20)  # the low bits of a number by which places are put in order, so that no two are equal


def _mixed(state: np.ndarray) -> np.ndarray:
    """The generator's hash of its state, uint64 of any shape."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def numbers(keys: np.ndarray, purpose: int, count: int) -> np.ndarray:
    """`count` random numbers for each of `keys` (int64 [n]): uint64 [n, count]. Another `purpose` draws others."""
    seeds = _mixed(_mixed(keys.astype(np.uint64) + GOLDEN) + np.uint64(purpose * int(GOLDEN) % 2**64))
    return _mixed(seeds[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def uniform(keys: np.ndarray, purpose: int, count: int) -> np.ndarray:
    """The same in [0, 1): float64 [n, count]."""
    return (numbers(keys, purpose, count) >> np.uint64(11)) * 2.0**-53


def ranked(keys: np.ndarray, purpose: int, among: np.ndarray) -> np.ndarray:
    """A number for every place, by whose size the places `among` (bool [n, R]) stand in random order: uint64 [n, R].

    No two places of a row have the same number; those not `among` have the highest there is.
    """
    places = among.shape[1]
    drawn = numbers(keys, purpose, places) >> PLACE_BITS << PLACE_BITS
    return np.where(among, drawn + np.arange(places, dtype=np.uint64), np.iinfo(np.uint64).max)


def subset(keys: np.ndarray, purpose: int, among: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """A uniformly random choice of `sizes` (int [n]) places of those `among` (bool [n, R]), or all: bool [n, R]."""
    order = ranked(keys, purpose, among)
    sizes = np.minimum(sizes, among.sum(1))
    last = np.sort(order, axis=1)[np.arange(len(keys)), np.maximum(sizes, 1) - 1]
    return among & (order <= last[:, None]) & (sizes > 0)[:, None]
