"""Where what is made of a run's text lies."""

import dataclasses
from pathlib import Path

from input_pipeline.remote import RemotePath


@dataclasses.dataclass(frozen=True)
class Folders:
    """A run's own folders, there or not."""

    tokenizer: Path | RemotePath
    data: Path | RemotePath  # of token stores, where `data.store` names no other
