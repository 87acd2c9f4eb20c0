"""Byte-pair encodings of words whose pieces say where the word ends, of GPT, XLM and CTRL: vocab.json and merges.txt.

Words are split into characters, and the pair that was merged first in training is merged first, everywhere in the
word, until no pair is left (Sennrich et al. 2016). XLM and CTRL look the resulting pieces up only then: one that the
vocabulary lacks is unknown, even if smaller pieces of it exist, which no `tokenizer.json` can express.

CTRL's words are separated by white space, and a line end belongs to the word before it; every piece of a word but the
last ends in "@@". XLM's text must be prepared, with Moses' scripts and those of its language, for some models also
lower-cased without accents; then words are separated by white space, and the last piece of a word ends in "</w>".
GPT's words are lower-cased, without accents, and split at punctuation as BERT's; it becomes a tokenizer.json.
"""

import itertools
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import read_json
from input_pipeline.tokenizers.base import Rewriting, fingerprint_of, special_ids
from input_pipeline.tokenizers.huggingface import library

VOCABULARY, MERGES = "vocab.json", "merges.txt"  # in one folder
UNKNOWN = "<unk>"
END, CONTINUED = "</w>", "@@"
CACHED_WORDS = 1 << 18
# White space in Unicode; Python's `str.split` also takes the separators U+001C to U+001F.
SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
CTRL_WORD, XLM_WORD = re.compile(f"[^{SPACE}]+\n?"), re.compile(r"\S+")


def read(path: Path, settings: Mapping) -> bytes:
    """One file of a vocabulary and the merges in its folder, of the kind in `settings`. Errors: DataError."""
    kind = settings["kind"]
    parts = library() if kind == "gpt" else None
    try:
        vocabulary = {piece: int(i) for piece, i in read_json(path).items()}
        if UNKNOWN not in vocabulary:
            raise ValueError(f"no {UNKNOWN}")
        lines = path.with_name(MERGES).read_text(encoding="utf-8").split("\n")
        if parts:
            return _gpt(parts, vocabulary, lines).to_str().encode("utf-8")
    except Exception as error:  # the library's errors have no common type
        raise DataError(f"{path}: not a {VOCABULARY} next to a {MERGES} ({error}). Give both.") from error
    # CTRL's first line is a heading; XLM's lines have a pair's count after it.
    merges = [line.split() for line in lines[1:-1]] if kind == "ctrl" else [line.split()[:2] for line in lines[:-1]]
    content = {"kind": kind, "vocabulary": vocabulary, "merges": merges}
    return json.dumps(content, ensure_ascii=False).encode("utf-8")


def _gpt(parts, vocabulary: Mapping[str, int], lines: list[str]):
    """GPT's tokenizer as the library's; `parts` is the library."""
    merges = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
    model = parts.models.BPE(vocabulary, merges, unk_token=UNKNOWN, end_of_word_suffix=END, fuse_unk=False)
    model = parts.Tokenizer(model)
    model.normalizer = parts.normalizers.BertNormalizer(lowercase=True)
    model.pre_tokenizer = parts.pre_tokenizers.BertPreTokenizer()
    model.decoder = parts.decoders.BPEDecoder(suffix=END)
    model.add_special_tokens([UNKNOWN])
    return model


def files(path: Path) -> dict[str, bytes]:
    """The two files, by name, that `read` joined for XLM or CTRL."""
    content = read_json(path)
    lines = [" ".join(pair) for pair in content["merges"]]
    head = ["#version: 0.2"] if content["kind"] == "ctrl" else []
    return {
        VOCABULARY: json.dumps(content["vocabulary"], ensure_ascii=False).encode("utf-8"),
        MERGES: "".join(f"{line}\n" for line in head + lines).encode("utf-8"),
    }


class WordBPE(Rewriting):
    """XLM's or CTRL's tokenizer, of a file that `read` made."""

    def __init__(self, path: Path):
        content = read_json(path)
        self._is_xlm, vocabulary = content["kind"] == "xlm", content["vocabulary"]
        unknown = vocabulary[UNKNOWN]
        # CTRL has no special tokens: a word of its text may look like another family's.
        special = special_ids(vocabulary.get) if self._is_xlm else {"unknown": unknown}
        super().__init__(max(vocabulary.values()) + 1, special, fingerprint_of(path))
        self._names = {i: name for name, i in vocabulary.items() if i not in special.values()}
        ranks = {tuple(pair): rank for rank, pair in enumerate(content["merges"])}

        @lru_cache(CACHED_WORDS)  # a text has few different words, and merging one takes long
        def ids_of(word: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
            """The ids of a word's pieces, and their ends in it."""
            parts = _merge(word, ranks)
            ends = (*itertools.accumulate(map(len, parts[:-1])), len(word))
            if not self._is_xlm:
                parts = [*(part + CONTINUED for part in parts[:-1]), parts[-1].removesuffix(END)]
            return tuple(vocabulary.get(part, unknown) for part in parts), ends

        self._ids_of, self._words = ids_of, XLM_WORD if self._is_xlm else CTRL_WORD

    def encode(self, text: str) -> np.ndarray:
        return np.array([i for word in self._words.findall(text) for i in self._ids_of(word)[0]], np.int32)

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        spans = []
        for word in self._words.finditer(text):
            ends = [0, *self._ids_of(word[0])[1]]
            spans += [(word.start() + start, word.start() + end) for start, end in itertools.pairwise(ends)]
        starts, ends = np.array(spans, np.int32).reshape(-1, 2).T
        return self.encode(text), starts, ends

    def join(self, ids: list[int]) -> str:
        names = [self._names[i] for i in ids if i in self._names]
        if self._is_xlm:
            return "".join(names).replace(END, " ").strip()
        words = (name.removesuffix(CONTINUED) if name.endswith(CONTINUED) else f"{name} " for name in names)
        return "".join(words).strip()


def _merge(word: str, ranks: Mapping[tuple[str, ...], int]) -> list[str]:
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
            place += 1 + found  # two parts became one
        parts = joined
    return parts
