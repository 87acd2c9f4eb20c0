"""Items of a task that the training text holds: overlaps of 13 tokens (Brown et al. 2020, appendix C)."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.token_store.store import KEPT, TOKENS, Store
from pretrain.errors import UserError

LENGTH = 13  # tokens that an item and the text share; GPT-3 counted words
BLOCK = 1 << 20  # tokens of the text whose windows are in memory at once
FACTOR = 0x9E3779B97F4A7C15  # odd, of a polynomial hash modulo 2**64


def open_stores(folder: str, fingerprint: str) -> list[Store]:
    """The token stores of a folder: one itself, or those in it or in the `data` of a run.

    Errors: UserError where there is none, or one of another tokenizer.
    """
    path = Path(folder)
    folders = [path, *sorted(path.glob("*/")), *sorted(path.glob("data/*/"))]
    stores = [store for one in folders if (store := Store.open(one)) is not None]
    if not stores:
        raise UserError(f"--contamination={folder}: holds no token store. Name a run's folder, or data.store.")
    if any(store.manifest["tokenizer"] != fingerprint for store in stores):
        raise UserError(f"--contamination={folder}: has another tokenizer than --workdir. Name the run's own store.")
    return stores


def windows(ids: np.ndarray) -> np.ndarray:
    """Hashes uint64 of all windows of LENGTH ids."""
    ids = ids.astype(np.uint64)
    found = np.zeros(max(0, len(ids) - LENGTH + 1), np.uint64)
    with np.errstate(over="ignore"):
        for place in range(LENGTH):
            found = found * np.uint64(FACTOR) + ids[place : place + len(found)] + np.uint64(1)
    return found


def text_windows(stores: Sequence[Store]) -> Iterator[np.ndarray]:
    """Hashes of the windows of all training text, in blocks."""
    for store in stores:
        for shard in store.shards(KEPT):
            ids = shard.open(TOKENS)
            for begin in range(0, len(ids), BLOCK):
                yield windows(ids[begin : begin + BLOCK + LENGTH - 1])


def held_items(stores: Sequence[Store], encode: Callable[[str], np.ndarray], questions) -> np.ndarray:
    """Which items of `Questions` the training text holds, bool [n]."""
    separator = questions.task.separator
    return overlaps(stores, [[encode(text) for text in item.texts(separator)] for item in questions.items])


def overlaps(stores: Sequence[Store], items: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Whether a window of any of an item's texts is in the training text, bool [n]; items are texts as ids."""
    hashes = [np.concatenate([windows(ids) for ids in texts]) for texts in items]
    known = np.unique(np.concatenate(hashes)) if hashes else np.zeros(0, np.uint64)
    seen = np.zeros(len(known), bool)
    for block in text_windows(stores):
        seen |= np.isin(known, block)
    return np.array([bool(seen[np.searchsorted(known, one)].any()) for one in hashes])
