"""Byte-pair encodings of words whose pieces say where the word ends: XLM's and CTRL's `vocab.json` and `merges.txt`.

Words are split into characters, and the pair that was merged first in training is merged first, everywhere in the
word, until no pair is left (Sennrich et al. 2016). The resulting pieces are looked up only then: one that the
vocabulary lacks is unknown, even if smaller pieces of it exist, which no `tokenizer.json` can express.

CTRL's words are separated by white space, and a line end belongs to the word before it; every piece of a word but the
last ends in "@@". XLM's text must be prepared, with Moses' scripts and those of its language, for some models also
lower-cased without accents; then words are separated by white space, and the last piece of a word ends in "</w>".
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import read_json
from input_pipeline.tokenizers.base import Rewriting, Tokenizer, fingerprint_of, special_ids

KINDS = ("ctrl", "xlm")
VOCABULARY, MERGES = "vocab.json", "merges.txt"  # in one folder
UNKNOWN = "<unk>"
END, CONTINUED = "</w>", "@@"
CACHED_WORDS = 1 << 18
# White space in Unicode; Python's `str.split` also takes the separators U+001C to U+001F.
SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
CTRL_WORD = re.compile(f"[^{SPACE}]+\n?")


def read(path: Path, kind: str) -> bytes:
    """One file of a vocabulary and the merges in its folder. Errors: DataError."""
    beside = path.with_name(MERGES)
    try:
        vocabulary = read_json(path)
        lines = beside.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no {VOCABULARY} with a {MERGES} in its folder ({error}). Give both.") from error
    if not isinstance(vocabulary, dict) or not all(type(i) is int and i >= 0 for i in vocabulary.values()):
        raise DataError(f"{path} is no object of pieces and ids. Give a {VOCABULARY}.")
    if UNKNOWN not in vocabulary:
        raise DataError(f"{path} has no {UNKNOWN}. Add it, as the class that wrote the file does.")
    # CTRL's first line is a heading; XLM's lines have a pair's count after it.
    merges = [line.split() for line in lines[1:-1]] if kind == "ctrl" else [line.split()[:2] for line in lines[:-1]]
    content = {"kind": kind, "vocabulary": vocabulary, "merges": merges}
    return json.dumps(content, ensure_ascii=False).encode("utf-8")


def files(path: Path) -> dict[str, bytes]:
    """The two files, by name, that `read` joined."""
    content = _content(path)
    lines = [" ".join(pair) for pair in content["merges"]]
    head = ["#version: 0.2"] if content["kind"] == "ctrl" else []
    return {
        VOCABULARY: json.dumps(content["vocabulary"], ensure_ascii=False).encode("utf-8"),
        MERGES: "".join(f"{line}\n" for line in head + lines).encode("utf-8"),
    }


def load(path: Path) -> Tokenizer:
    """The tokenizer of a file that `read` made. Errors: DataError for another file."""
    content = _content(path)
    kind, vocabulary = content["kind"], content["vocabulary"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(content["merges"])}
    # CTRL has no special tokens: a word of its text may look like another family's.
    special = special_ids(vocabulary.get) if kind == "xlm" else {"unknown": vocabulary[UNKNOWN]}
    unknown = vocabulary[UNKNOWN]

    @lru_cache(CACHED_WORDS)
    def ids_of(word: str) -> tuple[int, ...]:
        return tuple(vocabulary.get(name, unknown) for name in _names(kind, _merged(word, ranks)))

    words = CTRL_WORD.findall if kind == "ctrl" else str.split
    names, apart = {i: name for name, i in vocabulary.items()}, set(special.values())
    return Rewriting(
        encode=lambda text: np.array([i for word in words(text) for i in ids_of(word)], np.int32),
        decode=lambda ids: _text(kind, (names[i] for i in ids if i in names and i not in apart)),
        vocab_size=max(vocabulary.values()) + 1,
        special=special,
        fingerprint=fingerprint_of(path),
    )


def _content(path: Path) -> dict:
    try:
        content = read_json(path)
        if content["kind"] in KINDS and content["merges"] is not None and UNKNOWN in content["vocabulary"]:
            return content
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{path} is no vocabulary with merges. Give the {VOCABULARY} of a folder with a {MERGES}.")


def _merged(word: str, ranks: Mapping[tuple[str, ...], int]) -> list[str]:
    """The pieces of a word, the last with `END`."""
    parts = [*word[:-1], word[-1] + END]
    while len(parts) > 1:
        # The pair of the lowest rank, at all its places at once, as in training.
        first = min(itertools.pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
        if first not in ranks:
            break
        joined, place = [], 0
        while place < len(parts):
            found = tuple(parts[place : place + 2]) == first
            joined.append("".join(first) if found else parts[place])
            place += 1 + found
        parts = joined
    return parts


def _names(kind: str, parts: list[str]) -> list[str]:
    """Names of a word's pieces in the vocabulary."""
    if kind == "xlm":
        return parts
    return [*(part + CONTINUED for part in parts[:-1]), parts[-1].removesuffix(END)]


def _text(kind: str, names: Iterable[str]) -> str:
    """The text of pieces: words separated by spaces."""
    if kind == "xlm":
        return "".join(names).replace(END, " ").strip()
    return "".join(name.removesuffix(CONTINUED) if name.endswith(CONTINUED) else f"{name} " for name in names).strip()
