"""Small corpora and a prepared pipeline over them."""

import random
from pathlib import Path

import pytest

from configs import common
from input_pipeline import pipeline
from input_pipeline.io import Folders
from input_pipeline.token_store.build import Workers


@pytest.fixture
def write(tmp_path):
    """`write("a.txt", "text")` makes a file (of bytes or text) and gives its path."""

    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return str(path)

    return write


@pytest.fixture
def prepare(tmp_path):
    """`prepare("text:...", length=8)`: a Corpus of bytes from these sources; keywords are keys of config.data."""

    def prepare(
        train: str,
        *,
        tokenizer: dict | None = None,
        objective: dict | None = None,
        said: list | None = None,
        read_all: bool = False,
        scratch: Path | None = None,
        workers: Workers | None = None,
        root: Path = tmp_path / "run",
        **data,
    ) -> pipeline.Corpus:
        config = common.base()
        if objective:
            config.objective = common.OBJECTIVES[objective["kind"]]()
            config.objective.update(objective)
        config.data.update({"train": train, "holdout": 0.0, "length": 8, **data})
        config.tokenizer.update({"kind": "bytes", **(tokenizer or {})})
        report = (lambda line: None) if said is None else said.append
        sections = (section.to_dict() for section in (config.data, config.tokenizer, config.objective))
        folders = Folders(root / "tokenizer", root / "data")
        how = {"read_all": read_all, "scratch": scratch, "workers": workers}
        return pipeline.prepare(*sections, folders, report=report, **how)

    return prepare


@pytest.fixture
def words(write):
    """Writes `documents` files of random words under `folder` and gives the source that reads them."""

    def words(documents: int, longest: int = 60, folder: str = "words", seed: int = 0) -> str:
        draw = random.Random(seed)
        for number in range(documents):
            text = " ".join(draw.choice(["ein", "zwei", "drei", "viér", "\n"]) for _ in range(draw.randint(1, longest)))
            path = write(f"{folder}/{number:03d}.txt", text)
        return f"text:{path.rsplit('/', 1)[0]}/*.txt"

    return words
