"""Splits of a run's text; text that is scored must not be trained on."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from input_pipeline.errors import DataError
from input_pipeline.sources.base import Source
from input_pipeline.token_store.store import HELD, KEPT, NOTHING, Counts
from input_pipeline.token_store.stream import Stream

SPLITS = ("train", "validation", "test")


class Part(NamedTuple):
    """One source's part of a split."""

    source: Source
    split: str  # of its store: kept or held
    holdout: float
    stream: Stream


def holdout_share(data: Mapping) -> float:
    """Share of `data.train` that is held out for validation."""
    return 0.0 if data["validation"] else data["holdout"]


def check_overlap(named: Mapping[str, Sequence[Source]]) -> None:
    """Raises DataError if a scored source reads files or records that a training source reads too."""
    for name in set(named) - {"train"}:
        for source, scored in itertools.product(named["train"], named[name]):
            # Compared by real path and range of bytes or records: links and other globs are seen.
            if both := source.shared(scored):
                raise _overlap(name, source.spec, scored.spec, both)


def check_copies(splits: Mapping[str, Sequence[Part]]) -> None:
    """Raises DataError if a scored source holds the very documents of a training source under another name.

    Sources are compared one by one and all together; what was held out of training sources counts as theirs.
    """
    held = [part for part in splits.get("validation", ()) if part.split == HELD]
    # A source's text is what was kept of it and what was held out.
    groups = [[part, *(other for other in held if other.source is part.source)] for part in splits["train"]]
    groups.append([*splits["train"], *held])
    for name in set(splits) - {"train"}:
        scored = [part for part in splits.get(name, ()) if part.split == KEPT]
        for some, trained in itertools.product([*([part] for part in scored), scored], groups):
            counts = _count(some)
            # Content is hashed only if the counts agree, since it reads all of the text.
            if counts.tokens and counts == _count(trained) and _content(some) == _content(trained):
                specs = (" + ".join(dict.fromkeys(part.source.spec for part in parts)) for parts in (trained, some))
                raise _overlap(name, *specs, f"the same {counts.documents:,} documents")


def _overlap(name: str, trained: str, scored: str, both: str) -> DataError:
    key = f"data.{name}" if name in SPLITS else f"evaluations.{name}.data"
    return DataError(f"{key}={scored}: data.train={trained} reads {both} too. Name other text.")


def _count(parts: Sequence[Part]) -> Counts:
    return sum((part.stream.counts for part in parts), NOTHING)


def _content(parts: Sequence[Part]) -> int:
    # A sum of hashes: the order of documents, and how they are cut into files, does not matter.
    return sum(part.stream.content for part in parts)
