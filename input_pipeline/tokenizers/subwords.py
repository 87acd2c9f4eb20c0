"""Byte-pair encodings of words whose pieces say where the word ends: XLM's and CTRL's `vocab.json` and `merges.txt`.

Words are split into characters, and the pair that was merged first in training is merged first, everywhere in the word,
until none is left (Sennrich et al. 2016). What pieces this gives is looked up then: one that the vocabulary lacks is
unknown, though other pieces were made of it on the way; so no `tokenizer.json` can say the same.

CTRL's words stand between white space, and one line's end belongs to the word before it; a piece that its word goes on
behind ends in "@@". XLM's are what stands between white space in text that was prepared: split into words and cleaned
by Moses' scripts and those of its language, and for some of its models lower-cased without accents; the last piece of a
word ends in "</w>".
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.files import read_json
from input_pipeline.tokenizers.base import Rewriting, Tokenizer, fingerprint_of
from input_pipeline.tokenizers.names import special_ids

KINDS = ("ctrl", "xlm")
VOCABULARY, MERGES = "vocab.json", "merges.txt"  # which lie beside one another
UNKNOWN = "<unk>"
END, GOES_ON = "</w>", "@@"
WORDS_KEPT = 1 << 18  # words whose ids are remembered
# White space as Unicode has it; Python counts the separators U+001C to U+001F too.
SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
CTRL_WORD = re.compile(f"[^{SPACE}]+\n?")


def read(path: Path, kind: str) -> bytes:
    """The one file that a vocabulary and the merges beside it are kept as.

    Errors: DataError where one of them is missing or is none.
    """
    beside = path.with_name(MERGES)
    try:
        vocabulary = read_json(path)
        lines = beside.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no {VOCABULARY} with a {MERGES} beside it ({error}); bring both") from error
    if not isinstance(vocabulary, dict) or not all(type(i) is int and i >= 0 for i in vocabulary.values()):
        raise DataError(f"{path} is no object of pieces and their ids; give a {VOCABULARY}")
    if UNKNOWN not in vocabulary:
        raise DataError(
            f"{path} has no {UNKNOWN}, which stands for what it lacks; add it as the class that wrote it does"
        )
    # The first line of CTRL's is a heading; behind a pair XLM's have how often it was seen.
    merges = [line.split() for line in lines[1:-1]] if kind == "ctrl" else [line.split()[:2] for line in lines[:-1]]
    content = {"kind": kind, "vocabulary": vocabulary, "merges": merges}
    return json.dumps(content, ensure_ascii=False).encode("utf-8")


def files(path: Path) -> dict[str, bytes]:
    """The two files again, by name, of what `read` made of them."""
    content = _content(path)
    lines = [" ".join(pair) for pair in content["merges"]]
    head = ["#version: 0.2"] if content["kind"] == "ctrl" else []
    return {
        VOCABULARY: json.dumps(content["vocabulary"], ensure_ascii=False).encode("utf-8"),
        MERGES: "".join(f"{line}\n" for line in head + lines).encode("utf-8"),
    }


def load(path: Path) -> Tokenizer:
    """The tokenizer of a file that `read` made. Errors: DataError where it is none."""
    content = _content(path)
    kind, vocabulary = content["kind"], content["vocabulary"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(content["merges"])}
    # A word of CTRL's text may be called as the special tokens of others are.
    special = special_ids(vocabulary.get) if kind == "xlm" else {"unknown": vocabulary[UNKNOWN]}
    unknown = vocabulary[UNKNOWN]

    @lru_cache(WORDS_KEPT)
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
    raise DataError(f"{path} is no vocabulary with its merges; give the {VOCABULARY} of a folder with a {MERGES}")


def _merged(word: str, ranks: Mapping[tuple[str, ...], int]) -> list[str]:
    """The pieces of a word, the last with `END`."""
    parts = [*word[:-1], word[-1] + END]
    while len(parts) > 1:
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
    """What the vocabulary calls the pieces of a word."""
    if kind == "xlm":
        return parts
    return [*(part + GOES_ON for part in parts[:-1]), parts[-1].removesuffix(END)]


def _text(kind: str, names: Iterable[str]) -> str:
    """The text of pieces: words with a space between them."""
    if kind == "xlm":
        return "".join(names).replace(END, " ").strip()
    return "".join(name.removesuffix(GOES_ON) if name.endswith(GOES_ON) else f"{name} " for name in names).strip()
