"""Hugging Face tokenizer.json files (package `tokenizers`, extra `hf`)."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.tokenizers import offsets
from input_pipeline.tokenizers.base import (
    ByteExact,
    Rewriting,
    Tokenizer,
    fingerprint_of,
    is_code,
    sentinel_ids,
    special_ids,
)

LEFT_OUT = {"normalizer": None, "pre_tokenizer": None, "added_tokens": []}  # defaults of a file without these keys
META_SPACE = "\u2581"  # begins words in files that come from SentencePiece


def load(path: Path, unknown: str = "", roles: Mapping[str, str] | None = None) -> Tokenizer:
    """The tokenizer of a tokenizer.json; byte-exact if it is byte-level and does not rewrite text.

    unknown: a word of the text to read as the tokenizer's unknown token. roles: tokens by special id, for tokens whose
    names do not tell.
    """
    spec, model = read(path)
    # "<|endoftext|>" within a text is text.
    model.encode_special_tokens = True
    named, sentinels = _special(spec, model, {})
    special, _ = _special(spec, model, roles or {})
    fingerprint = fingerprint_of(path) + (json.dumps(roles, sort_keys=True) if special != named else "")
    if not unknown and _keeps_text(spec):
        return ByteLevel(model, spec, special, fingerprint, sentinels)
    return RewritingHuggingFace(model, spec, unknown, special, fingerprint + unknown, sentinels)


def read(path: Path):
    """(content, the library's tokenizer) of a tokenizer.json, without settings for training. Errors: DataError."""
    tokenizers = library()
    try:
        spec = {**LEFT_OUT, **json.loads(path.read_text(encoding="utf-8"))}
        spec["model"]["type"] = kind_of(spec)
        _hide_special(spec)
        # BPE's dropout is for training: with it, ids would be random.
        if spec["model"].get("dropout"):
            spec["model"]["dropout"] = None
        model = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library's errors have no common type
        raise DataError(f"{path} is no tokenizer.json ({error}). Save one with tokenizer.save(...).") from error
    model.no_truncation()
    model.no_padding()
    return spec, model


def kind_of(spec: Mapping) -> str:
    """The kind of a tokenizer.json's model, which older files do not state: then the library infers it."""
    return spec["model"].get("type") or type(library().Tokenizer.from_str(json.dumps(spec)).model).__name__


def library():
    """The package `tokenizers`. Errors: DataError if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise DataError("This tokenizer.kind needs the package tokenizers. Run pip install -e '.[hf]'.") from None
    return tokenizers


def _hide_special(spec: dict) -> None:
    """Keeps text from giving special tokens of a Unigram model, which have the best score of all its pieces.

    Text is cut after the first letter of such a name, and pieces do not span a cut.
    """
    if spec["model"]["type"] != "Unigram":
        return
    pieces = {piece for piece, _ in spec["model"]["vocab"]}
    names = [t["content"] for t in spec["added_tokens"] if t["special"] and t["content"] in pieces]
    first = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names if name[1:])
    cut = {"type": "Split", "pattern": {"Regex": first}, "behavior": "Isolated", "invert": False}
    if first and cut not in (spec["pre_tokenizer"] or {}).get("pretokenizers", ()):  # as in an export's file
        steps = [step for step in (spec["pre_tokenizer"], cut) if step]
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}


def _special(spec: dict, model, roles: Mapping[str, str]) -> tuple[dict[str, int], tuple[int, ...]]:
    """Special ids by name, and sentinels: of added tokens, except the end and the unknown one. `roles` come first."""
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    by_role = {name: model.token_to_id(token) if name == "end" else added.get(token) for name, token in roles.items()}
    own = {"end": special_ids(model.token_to_id).get("end"), "unknown": _unknown(spec, model)}
    codes = {name: i for name, i in added.items() if is_code(name)}
    found = {**special_ids(added.get), **{name: i for name, i in own.items() if i is not None}, **codes}
    return found | {name: i for name, i in by_role.items() if i is not None}, sentinel_ids(added.get)


def _unknown(spec: dict, model) -> int | None:
    """The unknown id: given by name, in unigram models by number."""
    return spec["model"].get("unk_id", model.token_to_id(spec["model"].get("unk_token") or ""))


def _words(spec: dict, model, special: Mapping[str, int]) -> tuple[np.ndarray | None, list[bytes]]:
    """`continues` and `texts`, by WordPiece's prefix of continuing ids or SentencePiece's space of others."""
    vocabulary = model.get_vocab(with_added_tokens=False)
    apart = {*special.values(), *(token["id"] for token in spec["added_tokens"])}  # they begin words, without marks
    is_wordpiece = spec["model"]["type"] == "WordPiece"
    if spec["model"]["type"] == "BPE" and any(step.get("type") == "ByteLevel" for step in _steps(spec)):
        texts = _byte_table(model, spec)
        return np.array([bool(text) and not text[:1].isspace() for text in texts]), texts
    if not is_wordpiece and not any(token.startswith(META_SPACE) for token in vocabulary):
        return None, []
    continues, texts = np.zeros(_size(model), bool), [b""] * _size(model)
    prefix = spec["model"]["continuing_subword_prefix"] if is_wordpiece else META_SPACE
    fallback = re.compile("<0x([0-9A-F]{2})>" if spec["model"].get("byte_fallback") else "(?!)")
    for token, i in vocabulary.items():
        if is_wordpiece or i not in apart:
            continues[i] = token.startswith(prefix) == is_wordpiece
        if i not in apart:
            byte = fallback.fullmatch(token)
            text = token.removeprefix(prefix) if is_wordpiece else token.replace(prefix, " ")
            texts[i] = bytes.fromhex(byte[1]) if byte else text.encode("utf-8")
    return continues, texts


def _size(model) -> int:
    """The highest id plus one: ids may have gaps."""
    return max(model.get_vocab(with_added_tokens=True).values()) + 1


def _keeps_text(spec: dict) -> bool:
    steps = _steps(spec)
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    return (
        spec["normalizer"] is None
        and spec["model"]["type"] == "BPE"
        and bool(byte_level)
        and not any(step["add_prefix_space"] for step in byte_level)
        and all(step["type"] in ("ByteLevel", "Split", "Digits") for step in steps)
        and not any(step.get("behavior") == "Removed" for step in steps)
        and not spec["model"].get("continuing_subword_prefix")
        and not spec["model"].get("end_of_word_suffix")
        and spec["model"]["vocab"].keys() >= letters().keys()
        # An added token may swallow the spaces around it; special ones are never found in text.
        and not any(t["lstrip"] or t["rstrip"] for t in spec["added_tokens"] if not t["special"])
    )


def _steps(spec: dict) -> list[dict]:
    """The steps of the pre-tokenizer: a file has one, or a sequence of them."""
    before = spec["pre_tokenizer"] or {}
    return before.get("pretokenizers", [before])


def _byte_table(model, spec: dict) -> list[bytes]:
    """The bytes of each id of a byte-level BPE, none of special ids and of those without an entry."""
    table, alphabet = [b""] * _size(model), letters()
    for token, i in spec["model"]["vocab"].items():
        # A token with a letter outside the byte alphabet was added by training and is plain text.
        table[i] = bytes(alphabet[letter] for letter in token) if alphabet.keys() >= set(token) else token.encode()
    for added in spec["added_tokens"]:
        table[added["id"]] = b"" if added["special"] else added["content"].encode("utf-8")
    return table


class ByteLevel(ByteExact):
    """A byte-level BPE, as GPT-2's: each token is a string of letters, one per byte."""

    def __init__(self, model, spec: dict, *names):
        super().__init__(_byte_table(model, spec), *names)
        self._model = model

    def encode(self, text: str) -> np.ndarray:
        return _ids(self._model, text)


class RewritingHuggingFace(Rewriting):
    """Any other tokenizer.json; `unknown` is a word of the text that is read as the unknown token."""

    def __init__(self, model, spec: dict, unknown: str, *names):
        super().__init__(_size(model), *names)
        self._model, self._unknown = model, unknown
        self.continues, self.texts = _words(spec, model, self.special)
        self._is_space = np.array([text.isspace() for text in self.texts] or np.zeros(self.vocab_size, bool))
        self._normalize = model.normalizer.normalize_str if model.normalizer else str
        self._unknown_id = _unknown(spec, model)
        if unknown and self._unknown_id is None:
            raise DataError(f"tokenizer.unknown={unknown}: the tokenizer has no unknown token. Leave it empty.")

    def encode(self, text: str) -> np.ndarray:
        if not self._unknown:
            return _ids(self._model, text)
        # The library never sees the word: the text is cut at it, and the unknown id takes its place.
        first, *others = (_ids(self._model, part) for part in text.split(self._unknown))
        return np.concatenate([first, *(np.append(np.int32(self._unknown_id), part) for part in others)])

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at, spans = 0, []
        for part in text.split(self._unknown) if self._unknown else [text]:
            if at:
                spans.append((at - len(self._unknown), at))
            # The library shifts all ranges if its normalizer drops the first character.
            first = next((i for i, letter in enumerate(part) if self._normalize(letter)), len(part))
            found = self._model.encode(part[first:], add_special_tokens=False).offsets
            spans += [(at + first + start, at + first + end) for start, end in found]
            at += len(part) + len(self._unknown)
        ids, (starts, ends) = self.encode(text), np.array(spans, np.int32).reshape(-1, 2).T.copy()
        self._split_bytes(text, starts, ends)
        self._add_composed(text, starts, ends)
        # A space that the tokenizer puts in front has the range of the character after it.
        return ids, starts, np.where(self._is_space[ids], starts, ends)

    def _split_bytes(self, text: str, starts: np.ndarray, ends: np.ndarray) -> None:
        """Gives bytes of unknown characters their own ranges: in unigram models a run of such characters has one."""
        same = (np.diff(starts) == 0) & (np.diff(ends) == 0) & (ends[1:] - starts[1:] > 1)
        if not same.any():
            return
        for run in np.split(np.arange(len(starts)), np.flatnonzero(~same) + 1):
            part = text[starts[run[0]] : ends[run[0]]] if len(run) > 1 else ""
            # As many characters, and bytes as tokens: the text itself or its normalized letters.
            forms = (form for form in (part, self._normalize(part)) if len(form) == len(part))
            if part and (form := next((form for form in forms if len(form.encode()) == len(run)), "")):
                first, last = offsets.of_bytes(form, np.ones(len(run), np.int64))
                starts[run], ends[run] = starts[run] + first, starts[run] + last

    def _add_composed(self, text: str, starts: np.ndarray, ends: np.ndarray) -> None:
        """Extends ranges by characters that the normalizer joins to theirs: the library leaves out all but one."""

        def letters(text: str) -> str:
            return "".join(self._normalize(text).replace(META_SPACE, " ").split())

        def are_joined(left: str, right: str) -> bool:
            return letters(left + right) != letters(left) + letters(right)

        for right in np.flatnonzero(np.append(starts, len(text)) > np.append(0, ends)):
            left = right - 1
            first, last = ends[left] if right else 0, starts[right] if right < len(starts) else len(text)
            if text[first:last].isspace():
                continue
            end, start = first, last
            while right and end < last and are_joined(text[starts[left] : end], text[end]):
                end += 1
            while right < len(starts) and start > end and are_joined(text[start - 1], text[start : ends[right]]):
                start -= 1
            if right:
                ends[ends == first] = end
            if right < len(starts):
                starts[starts == last] = start

    def join(self, ids: list[int]) -> str:
        return self._model.decode(ids)


def _ids(model, text: str) -> np.ndarray:
    return np.array(model.encode(text, add_special_tokens=False).ids, np.int32)


def letters() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes are themselves, the others U+0100 and up, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
