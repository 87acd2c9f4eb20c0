"""The interface of tokenizers, special ids, and the simplest tokenizer: bytes."""

import abc
import codecs
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.sources.base import to_bytes

# Tokens of each special id in the families' files; the first that a tokenizer has counts. An id may have several
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
    continues: whether an id continues the word of the id before it, bool [V]. None if unknown.
    """

    vocab_size: int
    fingerprint: str
    special: Mapping[str, int]
    sentinels: tuple[int, ...] = ()
    byte_lengths: np.ndarray | None
    continues: np.ndarray | None = None

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

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Special ids have no text."""

    @abc.abstractmethod
    def decoder(self, before: Iterable[int] = (), text: str = "") -> "Decoder":
        """Decodes ids one at a time: their addition to `text`, whose ids are `before`.

        Words that are joined by spaces begin with one, unless `text` ends with a space that its ids have lost.
        """

    def continuation(self, before: Iterable[int], ids: Iterable[int], text: str = "") -> str:
        """The addition of `ids` to `text`, as from `decoder`."""
        decoder = self.decoder(before, text)
        return "".join(map(decoder.feed, ids)) + decoder.finish()


class Decoder(abc.ABC):
    """Text of ids that arrive one at a time: the results of `feed`, then of `finish`, joined."""

    @abc.abstractmethod
    def feed(self, token: int) -> str:
        """The text that became certain with `token`; a character appears with its last byte."""

    @abc.abstractmethod
    def finish(self) -> str:
        """The rest of the text."""


class ByteExact(Tokenizer):
    """A tokenizer whose ids have fixed bytes."""

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        special: Mapping[str, int],
        fingerprint: str,
        sentinels: tuple[int, ...] = (),
    ):
        self.vocab_size, self.fingerprint = len(token_bytes), fingerprint
        self.special, self.sentinels = special, sentinels
        self._bytes = list(token_bytes)
        self.byte_lengths = np.array([len(data) for data in token_bytes], np.int32)
        self.continues = np.array([bool(data) and not data[:1].isspace() for data in token_bytes])

    def bytes_of(self, token: int) -> bytes:
        """Bytes of one id; for an id beyond the vocabulary 0xFF, which no UTF-8 text has and decodes to U+FFFD."""
        return self._bytes[token] if 0 <= token < self.vocab_size else b"\xff"

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Special ids have none; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.bytes_of, map(int, ids))).decode("utf-8", errors="replace")

    def decoder(self, before: Iterable[int] = (), text: str = "") -> Decoder:
        return _ByteDecoder(self)


class _ByteDecoder(Decoder):
    def __init__(self, tokenizer: ByteExact):
        self._tokenizer = tokenizer
        self._text = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        return self._text.decode(self._tokenizer.bytes_of(int(token)))

    def finish(self) -> str:
        return self._text.decode(b"", final=True)


class Rewriting(Tokenizer):
    """A tokenizer that normalises text, so that neither the round trip nor bytes per token are exact."""

    byte_lengths = None

    def __init__(
        self,
        encode: Callable[[str], np.ndarray],
        decode: Callable[[list[int]], str],
        vocab_size: int,
        special: Mapping[str, int],
        fingerprint: str,
        sentinels: tuple[int, ...] = (),
        continues: np.ndarray | None = None,
    ):
        self._encode, self._decode = encode, decode
        self.vocab_size, self.special, self.fingerprint = vocab_size, special, fingerprint
        self.sentinels, self.continues = sentinels, continues

    def encode(self, text: str) -> np.ndarray:
        return self._encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, joined by the tokenizer. Special ids and ids beyond the vocabulary have none."""
        return self._decode([i for i in map(int, ids) if 0 <= i < self.vocab_size and i != self.end_id])

    def decoder(self, before: Iterable[int] = (), text: str = "") -> Decoder:
        return _PrefixDecoder(self, before, text)


class _PrefixDecoder(Decoder):
    """Decodes everything again with each id, since a token's text depends on those before it."""

    def __init__(self, tokenizer: Rewriting, before: Iterable[int], text: str):
        self._tokenizer, self._ids = tokenizer, list(before)
        self._shown = tokenizer.decode(self._ids)
        # Whether `text` ends with a space that the ids have lost.
        self._spaced = text[-1:].isspace() and not self._shown[-1:].isspace()

    def feed(self, token: int) -> str:
        self._ids.append(int(token))
        text = self._tokenizer.decode(self._ids)
        # U+FFFD may become a character, and a word's spelling may change, with the next id.
        if text.endswith("\ufffd") or not text.startswith(self._shown):
            return ""
        return self._new(text)

    def finish(self) -> str:
        return self._new(self._tokenizer.decode(self._ids))

    def _new(self, text: str) -> str:
        new, self._shown = text[len(self._shown) :], text
        if new and self._spaced:
            new, self._spaced = new.removeprefix(" "), False
        return new


class Bytes(ByteExact):
    """The 256 bytes, and the end token (256)."""

    def __init__(self):
        super().__init__([bytes([b]) for b in range(256)] + [b""], {"end": 256}, fingerprint="bytes")

    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids of `text`, int32 [n]. The only tokenizer that also takes bytes, for images."""
        return np.frombuffer(to_bytes(text), np.uint8).astype(np.int32)


def extend(tokenizer: Tokenizer, names: Sequence[str], sentinels: int) -> Tokenizer:
    """`tokenizer` with an id for each of `names`, then `sentinels` ids, of which the highest comes first."""
    return Extended(tokenizer, names, sentinels) if names or sentinels else tokenizer


class Extended(Tokenizer):
    """Another tokenizer with more ids, which have no text."""

    def __init__(self, base: Tokenizer, names: Sequence[str], sentinels: int):
        self._base, self._own = base, range(base.vocab_size, base.vocab_size + len(names) + sentinels)
        self.vocab_size = self._own.stop
        self.special = {**base.special, **dict(zip(names, self._own, strict=False))}
        self.sentinels = tuple(reversed(self._own[len(names) :])) or base.sentinels
        self.fingerprint = "+".join((base.fingerprint, *names, *[f"{sentinels} sentinels"] * bool(sentinels)))
        self.byte_lengths, self.continues = (
            None if values is None else np.append(values, np.zeros(len(self._own), values.dtype))
            for values in (base.byte_lengths, base.continues)
        )

    def encode(self, text: str) -> np.ndarray:
        return self._base.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._base.encode_all(texts)

    def decode(self, ids: Iterable[int]) -> str:
        return self._base.decode(self._base_ids(ids))

    def decoder(self, before: Iterable[int] = (), text: str = "") -> Decoder:
        return _ExtendedDecoder(self._base.decoder(self._base_ids(before), text), self._own)

    def _base_ids(self, ids: Iterable[int]) -> list[int]:
        return [i for i in map(int, ids) if i not in self._own]


class _ExtendedDecoder(Decoder):
    def __init__(self, base: Decoder, added: range):
        self._base, self._added = base, added

    def feed(self, token: int) -> str:
        return "" if int(token) in self._added else self._base.feed(token)

    def finish(self) -> str:
        return self._base.finish()


def fingerprint_of(path: Path) -> str:
    """Hash of a tokenizer file's content."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
