"""The interface of tokenizers, special ids, and the simplest tokenizer: bytes."""

import abc
import codecs
import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.sources.base import to_bytes
from input_pipeline.tokenizers import offsets

# Spellings of each special token; the first that a tokenizer knows is used. An id may have several
# names: BERT's separator is its end, and RoBERTa and BART begin with <s> and separate by </s>. The last are those of
# tokenizers trained here.
SPECIAL_TOKENS = {
    "end": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]", "<end>"),
    "unknown": ("[UNK]", "<unk>"),
    "pad": ("[PAD]", "<pad>"),
    "mask": ("[MASK]", "<mask>", "<special1>"),  # the last is XLM's
    "separator": ("[SEP]", "<sep>", "</s>", "<separator>"),
    "classifier": ("[CLS]", "<cls>", "<s>", "<classifier>"),
}
LANGUAGE_CODE = re.compile("[a-z]{2,3}_[A-Z]{2}")  # in mBART's vocabularies


def is_code(name: str) -> bool:
    """Whether a token is the code of a language, as mBART's en_XX."""
    return LANGUAGE_CODE.fullmatch(name) is not None


def special_ids(find: Callable[[str], int | None]) -> Mapping[str, int]:
    """The special ids by name; `find` gives the id of a token, or None."""
    ids = {name: next((i for i in map(find, tokens) if i is not None), None) for name, tokens in SPECIAL_TOKENS.items()}
    return {name: i for name, i in ids.items() if i is not None}


def sentinel_ids(find: Callable[[str], int | None]) -> tuple[int, ...]:
    """The ids of <extra_id_0>, <extra_id_1>, ... as in T5's files; mT5's have a space before each."""
    for space in ("", "\u2581"):
        ids = []
        while (i := find(f"{space}<extra_id_{len(ids)}>")) is not None:
            ids.append(i)
        if ids:
            return tuple(ids)
    return ()


class Tokenizer(abc.ABC):
    """Text to ids and back.

    vocab_size: number of ids. fingerprint: changes with the ids' meaning.
    special: ids without text, by name: some of `SPECIAL_TOKENS`, and codes of languages.
    sentinels: ids that replace spans of text, in the order of their use; T5's highest id comes first.
    byte_lengths: UTF-8 bytes of each id, int32 [V], 0 for special ids; then any text survives the round trip. None if
    ids have no fixed bytes, since the tokenizer rewrites text.
    continues: whether an id continues the word of the id before it by the tokenizer's own marks, bool [V]. None if
    unknown. texts: UTF-8 bytes of each id without such marks, empty for special ids (see `word_starts`).
    """

    byte_lengths: np.ndarray | None = None
    continues: np.ndarray | None = None
    texts: Sequence[bytes] = ()

    def __init__(self, vocab_size: int, special: Mapping[str, int], fingerprint: str, sentinels: tuple[int, ...] = ()):
        self.vocab_size, self.special, self.fingerprint, self.sentinels = vocab_size, special, fingerprint, sentinels
        self._added = vocab_size  # the first of the ids that `extend` adds

    @property
    def end_id(self) -> int | None:
        """The id that ends a document and starts the next; None if the tokenizer has none."""
        return self.special.get("end")

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Ids of `text`, int32 [n]. Special tokens within a text are text."""

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each of `texts`, in one thread."""
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids, starts, ends), int32 [n]: `encode`, and the characters text[start:end] that each id came from.

        White space at both ends of a range is left out (see `offsets`).
        """
        ids, starts, ends = self.locate(text)
        return ids, *offsets.trim(text, starts, ends)

    @abc.abstractmethod
    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`encode_with_offsets`, with white space."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Special ids have no text."""

    def decoder(self, before: Iterable[int] = (), text: str = "") -> "Decoder":
        """Decodes ids one at a time: their addition to `text`, whose ids are `before`.

        Words that are joined by spaces begin with one, unless `text` ends with a space that its ids have lost.
        """
        return Decoder(self, before, text)

    def continuation(self, before: Iterable[int], ids: Iterable[int], text: str = "") -> str:
        """The addition of `ids` to `text`, as from `decoder`."""
        decoder = self.decoder(before, text)
        return "".join(map(decoder.feed, ids)) + decoder.finish()


def extend(tokenizer: Tokenizer, names: Sequence[str], sentinels: int) -> Tokenizer:
    """`tokenizer` with an id for each of `names`, then `sentinels` ids, of which the highest comes first.

    The added ids have no text.
    """
    added = range(tokenizer.vocab_size, tokenizer.vocab_size + len(names) + sentinels)
    if not added:
        return tokenizer
    extended = copy.copy(tokenizer)
    extended.vocab_size = added.stop
    extended.special = {**tokenizer.special, **dict(zip(names, added, strict=False))}
    extended.sentinels = tuple(reversed(added[len(names) :])) or tokenizer.sentinels
    # Stores and checkpoints remember the fingerprint, so its spelling is part of their format.
    extended.fingerprint = "+".join((tokenizer.fingerprint, *names, *[f"{sentinels} sentinels"] * bool(sentinels)))
    extended.byte_lengths, extended.continues = (
        None if values is None else np.append(values, np.zeros(len(added), values.dtype))
        for values in (tokenizer.byte_lengths, tokenizer.continues)
    )
    return extended


class Decoder:
    """Text of ids that arrive one at a time: the results of `feed`, then of `finish`, joined.

    Decodes everything again with each id, since a token's text may depend on those before it.
    """

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int], text: str):
        self._tokenizer, self._ids = tokenizer, list(before)
        self._shown = tokenizer.decode(self._ids)
        # Whether `text` ends with a space that the ids have lost.
        self._spaced = text[-1:].isspace() and not self._shown[-1:].isspace()

    def feed(self, token: int) -> str:
        """The text that became certain with `token`; a character appears with its last byte."""
        self._ids.append(int(token))
        text = self._tokenizer.decode(self._ids)
        # U+FFFD may become a character, and a word's spelling may change, with the next id.
        if text.endswith("\ufffd") or not text.startswith(self._shown):
            return ""
        return self._new(text)

    def finish(self) -> str:
        """The rest of the text."""
        return self._new(self._tokenizer.decode(self._ids))

    def _new(self, text: str) -> str:
        new, self._shown = text[len(self._shown) :], text
        if new and self._spaced:
            new, self._spaced = new.removeprefix(" "), False
        return new


class ByteExact(Tokenizer):
    """A tokenizer whose ids have fixed bytes, `token_bytes`; those of special ids are empty.

    names: special, fingerprint and sentinels, as of `Tokenizer`.
    """

    def __init__(self, token_bytes: Sequence[bytes], *names):
        super().__init__(len(token_bytes), *names)
        self.texts = list(token_bytes)
        self.byte_lengths = np.array([len(data) for data in token_bytes], np.int32)
        self.continues = np.array([bool(data) and not data[:1].isspace() for data in token_bytes])

    def bytes_of(self, token: int) -> bytes:
        """Bytes of one id; 0xFF, which no UTF-8 text has and decodes to U+FFFD, for one beyond the vocabulary."""
        if not 0 <= token < self.vocab_size:
            return b"\xff"
        return self.texts[token] if token < self._added else b""

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids = self.encode(text)
        return ids, *offsets.of_bytes(text, self.byte_lengths[ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Special ids have none; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.bytes_of, map(int, ids))).decode("utf-8", errors="replace")

    def decoder(self, before: Iterable[int] = (), text: str = "") -> Decoder:
        return _ByteDecoder(self)


class _ByteDecoder(Decoder):
    """Decodes without what came before: an id's bytes are always the same."""

    def __init__(self, tokenizer: ByteExact):
        self._tokenizer = tokenizer
        self._text = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        return self._text.decode(self._tokenizer.bytes_of(int(token)))

    def finish(self) -> str:
        return self._text.decode(b"", final=True)


class Rewriting(Tokenizer):
    """A tokenizer that normalises text, so that neither the round trip nor bytes per token are exact."""

    @abc.abstractmethod
    def join(self, ids: list[int]) -> str:
        """The text of ids of the vocabulary, without the end token."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, joined by the tokenizer. Special ids and ids beyond the vocabulary have none."""
        return self.join([i for i in map(int, ids) if 0 <= i < self._added and i != self.end_id])


class Bytes(ByteExact):
    """The 256 bytes, and the end token (256)."""

    def __init__(self):
        super().__init__([bytes([b]) for b in range(256)] + [b""], {"end": 256}, "bytes")

    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids of `text`, int32 [n]. The only tokenizer that also takes bytes, for images."""
        return np.frombuffer(to_bytes(text), np.uint8).astype(np.int32)


def fingerprint_of(path: Path) -> str:
    """Hash of a tokenizer file's content."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
