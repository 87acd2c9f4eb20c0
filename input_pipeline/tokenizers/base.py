"""What a tokenizer is, and the simplest: bytes."""

import abc
import codecs
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from input_pipeline.sources.readers import raw

# What special ids are for. An id may have several names: BERT's separator is its end, RoBERTa's end its separator.
SPECIAL = ("end", "unknown", "pad", "mask", "separator", "classifier")


class Tokenizer(abc.ABC):
    """Text to ids and back.

    vocab_size: number of ids. fingerprint: changes with the ids' meaning.
    special: the ids that stand for no text, by name: those that it has of `SPECIAL`.
    sentinels: ids that stand for what is left out of a text, in the order of their use; of T5 the highest comes first.
    byte_lengths: UTF-8 bytes that each id stands for, int32 [V], 0 for special ids; then any text survives the round
    trip. None where ids stand for no fixed bytes, since the tokenizer rewrites text.
    continues: whether an id goes on with the word of the id before it, bool [V]. None where that is not known.
    """

    vocab_size: int
    fingerprint: str
    special: Mapping[str, int]
    sentinels: tuple[int, ...] = ()
    byte_lengths: np.ndarray | None
    continues: np.ndarray | None = None

    @property
    def end_id(self) -> int | None:
        """The id that ends a document and starts the next, None where nothing does."""
        return self.special.get("end")

    @abc.abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Ids of `text`, int32 [n]. No text gives a special id."""

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each of `texts`, in one thread."""
        return [self.encode(text) for text in texts]

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Special ids give nothing."""

    @abc.abstractmethod
    def decoder(self, before: Iterable[int] = (), text: str = "") -> "Decoder":
        """Decodes ids one at a time, for streaming: what they add to `text`, whose ids `before` are.

        Words that are joined by spaces begin with one, unless `text` ends in one that its ids have lost.
        """

    def continuation(self, before: Iterable[int], ids: Iterable[int], text: str = "") -> str:
        """What `ids` add to `text`, as `decoder` has it."""
        decoder = self.decoder(before, text)
        return "".join(map(decoder.feed, ids)) + decoder.finish()


class Decoder(abc.ABC):
    """Text of ids that arrive one at a time. All that `feed` and then `finish` return is the text of all ids."""

    @abc.abstractmethod
    def feed(self, token: int) -> str:
        """The text that became certain with `token`; a character comes once its last byte is there."""

    @abc.abstractmethod
    def finish(self) -> str:
        """What is left."""


class ByteExact(Tokenizer):
    """A tokenizer each of whose ids stands for fixed bytes."""

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
        """Bytes of one id; a byte that no UTF-8 text has, and so U+FFFD, for an id beyond the vocabulary."""
        return self._bytes[token] if 0 <= token < self.vocab_size else b"\xff"

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Special ids give nothing; bytes that are not UTF-8 give U+FFFD."""
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
    """A foreign tokenizer that normalises text, so that neither the round trip nor bytes per token are exact."""

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
        """The text of `ids`, as the tokenizer joins it. Special ids and ids beyond the vocabulary give nothing."""
        return self._decode([i for i in map(int, ids) if 0 <= i < self.vocab_size and i != self.end_id])

    def decoder(self, before: Iterable[int] = (), text: str = "") -> Decoder:
        return _PrefixDecoder(self, before, text)


class _PrefixDecoder(Decoder):
    """Decodes everything again with each id, since a token's text depends on those before it."""

    def __init__(self, tokenizer: Rewriting, before: Iterable[int], text: str):
        self._tokenizer, self._ids = tokenizer, list(before)
        self._shown = tokenizer.decode(self._ids)
        self._spaced = text[-1:].isspace() and not self._shown[-1:].isspace()  # by a space that the ids have lost

    def feed(self, token: int) -> str:
        self._ids.append(int(token))
        text = self._tokenizer.decode(self._ids)
        if text.endswith("\ufffd") or not text.startswith(self._shown):  # not settled yet
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
        """Ids of `text`, int32 [n]; alone among tokenizers it takes bytes too, of an image."""
        return np.frombuffer(raw(text), np.uint8).astype(np.int32)


def fingerprint_of(path: Path) -> str:
    """Hash of a tokenizer file's content."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
