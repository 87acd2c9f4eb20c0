"""How often each id occurs in a stream: counted once, kept on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.packing import index_cache
from input_pipeline.token_store.stream import Stream

BLOCK = 1 << 24  # ids that are read at a time


class Counts(NamedTuple):
    """counts: int64 [V], of each id."""

    counts: np.ndarray

    __reduce__ = index_cache.by_name


def plan(stream: Stream, size: int, folder: Path, report: Callable[[str], None], read_all: bool) -> Counts:
    """The stored counts of the ids below `size` of a stream, made first if they are not there."""
    return index_cache.kept(
        Counts,
        folder / f"counts-{stream.identity}-{size}",
        lambda: _counted(stream, size),
        f"counting {stream.tokens:,} tokens",
        report,
        read_all,
    )


def _counted(stream: Stream, size: int) -> Iterator[Counts]:
    found = np.zeros(size, np.int64)
    for start in range(0, stream.tokens, BLOCK):
        ids = np.empty(min(BLOCK, stream.tokens - start), np.int32)
        stream.copy(start, ids)
        found += np.bincount(ids, minlength=size)
    yield Counts(found)
