"""Random numbers as a function of a key and a place, whichever rows are drawn together, on whichever host.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), whose n-th
number is a hash of its seed and n: a row's seed is a hash of its key and of what is drawn.
"""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # odd, 2^64 by the golden ratio
CONTENT = 1 << 16  # a purpose of no objective's
BLOCK = 1 << 14  # numbers that are hashed together: they stay in a processor's cache
PLACE_BITS = np.uint64(20)  # the low bits of a number by which places are put in order, so that no two are equal


def _mixed(state: np.ndarray) -> np.ndarray:
    """The generator's hash of its state, uint64 of any shape, which takes the state's place."""
    flat = state.reshape(-1)
    for begin in range(0, flat.size, BLOCK):
        part = flat[begin : begin + BLOCK]
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            part ^= part >> np.uint64(shift)
            part *= np.uint64(factor)
        part ^= part >> np.uint64(31)
    return flat.reshape(state.shape)


def numbers(keys: np.ndarray, purpose: int, count: int) -> np.ndarray:
    """`count` random numbers for each of `keys` (int64 [n]): uint64 [n, count]. Another `purpose` draws others."""
    seeds = _mixed(_mixed(keys.astype(np.uint64) + GOLDEN) + np.uint64(purpose * int(GOLDEN) % 2**64))
    return _mixed(seeds[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def of_content(keys: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
    """Keys that follow from what stands in rows, ids int32 [n, R], as one of `count` that `keys` choose: int64 [n]."""
    placed = _mixed(ids.astype(np.uint64) + np.arange(1, ids.shape[1] + 1, dtype=np.uint64) * GOLDEN)
    which = numbers(keys, CONTENT, 1)[:, 0] % np.uint64(count)
    return _mixed(np.bitwise_xor.reduce(placed, axis=1) + which * GOLDEN).astype(np.int64)


def uniform(keys: np.ndarray, purpose: int, count: int) -> np.ndarray:
    """The same in [0, 1): float64 [n, count]."""
    return (numbers(keys, purpose, count) >> np.uint64(11)) * 2.0**-53


def ranked(keys: np.ndarray, purpose: int, among: np.ndarray) -> np.ndarray:
    """A number for every place, by whose size the places `among` (bool [n, R]) stand in random order: uint64 [n, R].

    No two places of a row have the same number; those not `among` have the highest there is.
    """
    count = among.shape[1]
    order = _at_places(numbers(keys, purpose, count), np.arange(count))
    return np.where(among, order, np.iinfo(np.uint64).max)


def _at_places(drawn: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Random numbers whose low bits are made their places."""
    return (drawn >> PLACE_BITS << PLACE_BITS) + place.astype(np.uint64)


def places(keys: np.ndarray, purpose: int, among: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The places of the choice that `subset` makes, `sizes` of the first `among` places (int64 [n] each, at least 0).

    int64 [n, max(sizes)], in order; behind them stands `among`. Where few of many are chosen, numbers are drawn for all
    of them, but only the low ones are put in order: half the time.
    """
    most, width = int(sizes.max(initial=0)), max(int(among.max(initial=0)), 1)
    drawn, place = numbers(keys, purpose, width), np.arange(width)
    there, share = place < among[:, None], (most + 8 * most**0.5 + 1) / width
    found = np.full(len(keys), -1)
    while (found < sizes).any():  # of rows alike not one in a million asks twice
        low = there & (drawn < np.uint64(int(share * 2**44) << 20)) if share < 1 else there
        found, share = np.count_nonzero(low, axis=1), 2 * share
    flat = np.flatnonzero(low)
    place = flat - np.repeat(np.arange(len(keys)) * width, found)
    candidates = np.full((len(keys), int(found.max(initial=0))), np.iinfo(np.uint64).max)
    candidates[np.arange(candidates.shape[1]) < found[:, None]] = _at_places(drawn.ravel()[flat], place)
    candidates.sort(axis=1)
    chosen = (candidates[:, :most] & ((np.uint64(1) << PLACE_BITS) - np.uint64(1))).astype(np.int64)
    return np.sort(np.where(np.arange(most) < sizes[:, None], chosen, among[:, None]), axis=1)


def subset(keys: np.ndarray, purpose: int, among: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """A uniformly random choice of `sizes` (int [n]) places of those `among` (bool [n, R]), or all: bool [n, R]."""
    order = ranked(keys, purpose, among)
    sizes = np.minimum(sizes, among.sum(1))
    last = np.sort(order, axis=1)[np.arange(len(keys)), np.maximum(sizes, 1) - 1]
    return among & (order <= last[:, None]) & (sizes > 0)[:, None]
