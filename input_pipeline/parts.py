"""What a split is made of."""

from typing import NamedTuple

from input_pipeline.sources.sources import Source
from input_pipeline.store.stream import Stream


class Part(NamedTuple):
    """One source's share of a split."""

    source: Source
    split: str  # of its store: kept or held
    holdout: float
    stream: Stream
