"""Batches of random tokens, for steps that are tested without a pipeline."""

import numpy as np


def random_batch(seed: int, rows: int, length: int, vocabulary: int) -> dict[str, np.ndarray]:
    """Whole rows of ids below `vocabulary`, each a document whose every token is scored."""
    tokens = np.random.default_rng(seed).integers(0, vocabulary, (rows, length)).astype(np.int32)
    return {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, 1),
        "weights": np.ones((rows, length), np.float32),
        "segments": np.ones((rows, length), np.int32),
        "positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "row": np.arange(rows, dtype=np.int32),
    }
