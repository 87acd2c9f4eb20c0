"""Vocabularies counted from text, most frequent first: its symbols (bytes), or its words."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import read_json
from input_pipeline.sources.base import to_bytes
from input_pipeline.tokenizers.base import ByteExact, Rewriting, Tokenizer, fingerprint_of

END, UNKNOWN = "<eos>", "<unk>"
_WORDS = re.compile(r"\n|\S+")


def count_symbols(texts: Iterable[str]) -> list[int]:
    """The byte values in `texts`, most frequent first, ties by value. Errors: DataError if there is no text."""
    counts = np.zeros(256, np.int64)
    for text in texts:
        counts += np.bincount(np.frombuffer(to_bytes(text), np.uint8), minlength=256)
    if not counts.any():
        raise DataError("data.train has no text to count symbols in. Check the source.")
    # A stable sort breaks ties by byte value: the same ids on every machine.
    order = np.argsort(-counts, kind="stable")
    return order[counts[order] > 0].tolist()


def count_words(texts: Iterable[str], size: int) -> list[str]:
    """`<eos>`, then the most frequent whitespace-separated words of `texts`, and `<unk>`: at most `size` in all.

    The order of Transformer-XL's release (Dai et al. 2019); ties in order of occurrence. Errors: DataError if there is
    no word.
    """
    counts = Counter(word for text in texts for word in _WORDS.findall(text) if word != "\n")
    if not counts:
        raise DataError("data.train has no text to count words in. Check the source.")
    counts.pop(END, None)
    words = [word for word, _ in counts.most_common(size - 1)]
    if UNKNOWN not in words:
        words = [*words[: size - 2], UNKNOWN]
    return [END, *words]


def save(path: Path, vocabulary: Sequence[int] | Sequence[str]) -> None:
    """Writes a vocabulary as JSON."""
    path.write_text(json.dumps({"vocabulary": vocabulary}), encoding="utf-8")


def load_symbols(path: Path) -> "Symbols":
    """The tokenizer of a file that `save` wrote of `count_symbols`."""

    def fits(symbols: list) -> bool:
        return bool(symbols) and all(type(s) is int and 0 <= s < 256 for s in symbols)

    return Symbols(_vocabulary(path, fits, "the values of bytes, 0 to 255"), fingerprint_of(path))


def load_words(path: Path) -> Tokenizer:
    """The tokenizer of a file that `save` wrote of `count_words`.

    Words and line ends are tokens, and the line end is the end token too; decoding joins words by single spaces.
    """

    def fits(words: list) -> bool:
        return words[:1] == [END] and UNKNOWN in words and all(type(w) is str for w in words)

    words = _vocabulary(path, fits, f"words, {END} first and {UNKNOWN} among them")
    ids = {word: i for i, word in enumerate(words)} | {"\n": 0}
    unknown = ids[UNKNOWN]

    def decode(tokens: list[int]) -> str:
        return " ".join(words[token] for token in tokens)

    return Rewriting(
        encode=lambda text: np.array([ids.get(word, unknown) for word in _WORDS.findall(text)], np.int32),
        decode=decode,
        vocab_size=len(words),
        special={"end": 0, "unknown": unknown},
        fingerprint=fingerprint_of(path),
        continues=np.zeros(len(words), bool),
    )


def _vocabulary(path: Path, fits: Callable[[list], bool], what: str) -> list:
    """The vocabulary that `save` wrote. Errors: DataError unless it is a list of different entries that `fits`."""
    try:
        content = read_json(path)
    except ValueError:  # no UTF-8, or no JSON
        content = None
    found = content.get("vocabulary") if isinstance(content, dict) else None
    if not isinstance(found, list) or not fits(found) or len(set(found)) < len(found):
        raise DataError(f'{path} is no vocabulary. Give JSON of {{"vocabulary": [...]}} with {what}, each once.')
    return found


class Symbols(ByteExact):
    """The bytes that occur in a text and nothing else: documents follow one another without an end token."""

    def __init__(self, symbols: Sequence[int], fingerprint: str):
        super().__init__([bytes([symbol]) for symbol in symbols], {}, fingerprint)
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
