"""Counter-based random numbers: a function of (key, purpose, place), whichever rows are drawn together.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): number n is
a hash of seed + n * golden. A row's seed is a hash of its key and of the purpose of the draw, so no state is carried
from row to row, and any host can draw any row.
"""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
CONTENT = 1 << 16  # purpose of `content_keys`; objectives use small numbers
BLOCK = 1 << 14  # numbers hashed together: 128 KiB, which stay in the processor's cache
PLACE_BITS = np.uint64(20)  # low bits that hold the place in a sort key; rows have fewer than 2^20 places


def _hash(state: np.ndarray) -> np.ndarray:
    """SplitMix64's output function, uint64 of any shape, in place."""
    flat = state.reshape(-1)
    for begin in range(0, flat.size, BLOCK):
        part = flat[begin : begin + BLOCK]
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            part ^= part >> np.uint64(shift)
            part *= np.uint64(factor)
        part ^= part >> np.uint64(31)
    return flat.reshape(state.shape)


def numbers(keys: np.ndarray, purpose: int, count: int) -> np.ndarray:
    """`count` random numbers for each of `keys` (int64 [n]): uint64 [n, count]. Purposes are independent."""
    # Two rounds: keys are consecutive integers, whose single hash plus a purpose could meet another key's.
    seeds = _hash(_hash(keys.astype(np.uint64) + GOLDEN) + np.uint64(purpose * int(GOLDEN) % 2**64))
    return _hash(seeds[:, None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def uniform(keys: np.ndarray, purpose: int, count: int) -> np.ndarray:
    """`count` uniform numbers in [0, 1) for each of `keys`: float64 [n, count]."""
    # A float64 has 53 bits of mantissa: the top 53 of 64 bits, so that 1.0 is never rounded to.
    return (numbers(keys, purpose, count) >> np.uint64(11)) * 2.0**-53


def content_keys(keys: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
    """Keys that hash the content of rows (ids int32 [n, R]) and one of `count` choices made by `keys`: int64 [n]."""
    # XOR is commutative, so each id is hashed together with its place first.
    placed = _hash(ids.astype(np.uint64) + np.arange(1, ids.shape[1] + 1, dtype=np.uint64) * GOLDEN)
    which = numbers(keys, CONTENT, 1)[:, 0] % np.uint64(count)
    return _hash(np.bitwise_xor.reduce(placed, axis=1) + which * GOLDEN).astype(np.int64)


def sort_keys(keys: np.ndarray, purpose: int, among: np.ndarray) -> np.ndarray:
    """Random sort keys of the places `among` (bool [n, R]), uint64 [n, R]; other places sort last.

    No two places of a row have the same key, so that any sort gives the same order on any machine.
    """
    count = among.shape[1]
    return np.where(among, _add_places(numbers(keys, purpose, count), np.arange(count)), np.iinfo(np.uint64).max)


def _add_places(drawn: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Random numbers with their places in the low bits: 44 random bits, then the place."""
    return (drawn >> PLACE_BITS << PLACE_BITS) + place.astype(np.uint64)


def subset(keys: np.ndarray, purpose: int, among: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Uniformly random `sizes` (int [n]) of the places `among` (bool [n, R]), or all of them: bool [n, R]."""
    order = sort_keys(keys, purpose, among)
    sizes = np.minimum(sizes, among.sum(1))
    # The places with the lowest `sizes` keys are chosen: those up to the key of rank `sizes`.
    last = np.sort(order, axis=1)[np.arange(len(keys)), np.maximum(sizes, 1) - 1]
    return among & (order <= last[:, None]) & (sizes > 0)[:, None]


def subset_places(keys: np.ndarray, purpose: int, among: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The choice of `subset` among the first `among` places, as sorted places: int64 [n, max(sizes)].

    among, sizes: int64 [n], sizes <= among. Rows with fewer choices are filled up with `among`.
    """
    # Few of many places are chosen (28 of 483 for T5): only keys low enough to win are sorted, in half the time.
    # The threshold lets through the expected number plus 8 standard deviations; a row with too few doubles it.
    most, width = int(sizes.max(initial=0)), max(int(among.max(initial=0)), 1)
    drawn, place = numbers(keys, purpose, width), np.arange(width)
    inside, share = place < among[:, None], (most + 8 * most**0.5 + 1) / width
    counts = np.full(len(keys), -1)
    while (counts < sizes).any():  # with rows of one length, less than once in a million
        low = inside & (drawn < np.uint64(int(share * 2**44) << 20)) if share < 1 else inside
        counts, share = np.count_nonzero(low, axis=1), 2 * share
    flat = np.flatnonzero(low)
    place = flat - np.repeat(np.arange(len(keys)) * width, counts)
    candidates = np.full((len(keys), int(counts.max(initial=0))), np.iinfo(np.uint64).max)
    candidates[np.arange(candidates.shape[1]) < counts[:, None]] = _add_places(drawn.ravel()[flat], place)
    candidates.sort(axis=1)
    chosen = (candidates[:, :most] & ((np.uint64(1) << PLACE_BITS) - np.uint64(1))).astype(np.int64)
    return np.sort(np.where(np.arange(most) < sizes[:, None], chosen, among[:, None]), axis=1)
