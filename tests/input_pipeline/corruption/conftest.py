"""Real text as ids, and what objectives need to know of a tokenizer."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from input_pipeline.packing.concat import Raw

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Vocabulary:
    """The special ids of a tokenizer, and which ids continue a word; text is encoded as its code points.

    pieces: text of some ids, instead of the character of that code point.
    """

    vocab_size: int = 1000
    special: dict = field(
        default_factory=lambda: {"pad": 0, "unknown": 1, "classifier": 2, "separator": 3, "mask": 4, "end": 5}
    )
    sentinels: tuple = tuple(range(999, 899, -1))
    continues: np.ndarray | None = None
    texts: tuple = ()
    end_id: int | None = 5
    pieces: dict = field(default_factory=dict)

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(letter) for letter in text], np.int32)

    def decode(self, ids) -> str:
        return "".join(self.pieces.get(i, chr(i)) for i in ids)


@pytest.fixture(scope="session")
def vocabulary():
    return Vocabulary()


@pytest.fixture(scope="session")
def word_vocabulary(pieces):
    """One that marks words, of the ids of `pieces`."""
    return Vocabulary(vocab_size=len(pieces[1]), continues=pieces[1])


@pytest.fixture(scope="session")
def pieces():
    """(ids, which ids continue a word) of this project's own source: words cut into pieces of three letters."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "input_pipeline").rglob("*.py")))
    known, ids = {}, []
    for word in re.findall(r"\w+|[^\w\s]", text):
        for start in range(0, len(word), 3):
            ids.append(known.setdefault(("##" if start else "") + word[start : start + 3], 10 + len(known)))
    continues = np.zeros(10 + len(known), bool)
    continues[[i for piece, i in known.items() if piece.startswith("##")]] = True
    return np.array(ids, np.int32), continues


@pytest.fixture(scope="session")
def raw_rows(pieces):
    """`raw_rows(n, R)`: raw rows of that text."""

    def rows(number: int, length: int) -> Raw:
        ids = np.resize(pieces[0], number * length).reshape(number, length)
        ones = np.ones_like(ids)
        return Raw(ids, np.roll(ids, -1, 1), ones, np.arange(length, dtype=np.int32) * ones, ones.astype(bool))

    return rows
