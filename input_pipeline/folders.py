"""Where what is made of a run's text lies."""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Folders:
    """A run's own folders, there or not."""

    tokenizer: Path
    data: Path  # of token stores, where `data.store` names no other
