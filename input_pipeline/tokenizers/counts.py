"""Vocabularies counted from text, most frequent first: its symbols (bytes), or its words."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import read_json
from input_pipeline.sources.base import to_bytes
from input_pipeline.tokenizers.base import ByteExact, Rewriting, fingerprint_of

END, UNKNOWN = "<eos>", "<unk>"
_WORDS = re.compile(r"\n|\S+")


def train_symbols(texts: Iterable[str]) -> bytes:
    """The file of the byte values in `texts`, most frequent first, ties by value."""
    counts = np.zeros(256, np.int64)
    for text in texts:
        counts += np.bincount(np.frombuffer(to_bytes(text), np.uint8), minlength=256)
    # A stable sort breaks ties by byte value: the same ids on every machine.
    order = np.argsort(-counts, kind="stable")
    return _file(order[counts[order] > 0].tolist())


def train_words(texts: Iterable[str], size: int) -> bytes:
    """The file of `<eos>`, the most frequent words of `texts`, and `<unk>`: at most `size` in all.

    The order of Transformer-XL's release (Dai et al. 2019); ties in order of occurrence.
    """
    counts = Counter(word for text in texts for word in _WORDS.findall(text) if word != "\n")
    counts.pop(END, None)
    words = [word for word, _ in counts.most_common(size - 1)]
    # WikiText's text has <unk> already, as frequent as it is; other text gets it in place of the rarest word.
    if UNKNOWN not in words:
        words = [*words[: size - 2], UNKNOWN]
    return _file([END, *words])


def _file(vocabulary: Sequence[int] | Sequence[str]) -> bytes:
    return json.dumps({"vocabulary": vocabulary}).encode("utf-8")


def _vocabulary(path: Path, kind: type) -> list:
    """The vocabulary in a file of `_file`, of entries of a type. Errors: DataError for another file."""
    try:
        found = read_json(path)["vocabulary"]
    except (ValueError, TypeError, KeyError):
        found = []
    if {type(entry) for entry in found} != {kind}:
        raise DataError(f'{path} is no vocabulary. Give JSON of {{"vocabulary": [...]}}, or train one.')
    return found


class Symbols(ByteExact):
    """The bytes that occur in a text and nothing else: documents follow one another without an end token."""

    def __init__(self, path: Path):
        symbols = _vocabulary(path, int)
        super().__init__([bytes([symbol]) for symbol in symbols], {}, fingerprint_of(path))
        self._ids = np.full(256, -1, np.int32)
        self._ids[symbols] = np.arange(len(symbols))

    def encode(self, text: str) -> np.ndarray:
        """Ids of `text`, int32 [n]. Errors: DataError for a byte outside the vocabulary."""
        data = np.frombuffer(to_bytes(text), np.uint8)
        ids = self._ids[data]
        if len(ids) and ids.min() < 0:
            raise DataError(
                f"tokenizer.kind=symbols: byte {data[ids.argmin()]:#04x} is not in the vocabulary. Use kind=bytes."
            )
        return ids


class Words(Rewriting):
    """Words and line ends, which are the end token too; decoding joins words by single spaces."""

    def __init__(self, path: Path):
        self._words = _vocabulary(path, str)
        self._ids = {word: i for i, word in enumerate(self._words)} | {"\n": 0}
        self._unknown = self._ids[UNKNOWN]
        super().__init__(len(self._words), {"end": 0, "unknown": self._unknown}, fingerprint_of(path))
        self.continues = np.zeros(len(self._words), bool)

    def encode(self, text: str) -> np.ndarray:
        return np.array([self._ids.get(word, self._unknown) for word in _WORDS.findall(text)], np.int32)

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        spans = np.array([word.span() for word in _WORDS.finditer(text)], np.int32).reshape(-1, 2)
        return self.encode(text), spans[:, 0], spans[:, 1]

    def join(self, ids: list[int]) -> str:
        return " ".join(self._words[i] for i in ids)
