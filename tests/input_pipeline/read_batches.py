"""Reading batches in tests."""

import numpy as np


def take(corpus, count: int, *, seed=3, batch_size=8, workers=0, prefetch=2, **options) -> list[dict]:
    """The first `count` training batches."""
    reader = corpus.batches(seed=seed, batch_size=batch_size, workers=workers, prefetch=prefetch, **options)
    try:
        return [next(reader) for _ in range(count)]
    finally:
        reader.close()


def assert_equal(left: list[dict], right: list[dict]) -> None:
    """Asserts that batches have equal features."""
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def restore_masked(batch: dict) -> np.ndarray:
    """The tokens [B, T] of a batch of masked rows before they were masked."""
    tokens = batch["tokens"].copy()
    rows, places = np.nonzero(batch["weights"] > 0)
    tokens[rows, batch["slots"][rows, places]] = batch["targets"][rows, places]
    return tokens
