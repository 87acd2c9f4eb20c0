"""SentencePiece models: reading any, and training one that keeps every character of its text."""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import sentencepiece as library
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from input_pipeline.errors import DataError
from input_pipeline.tokenizers import offsets
from input_pipeline.tokenizers.base import (
    ByteExact,
    Rewriting,
    Tokenizer,
    fingerprint_of,
    sentinel_ids,
    special_ids,
)

META_SPACE = "\u2581"  # SentencePiece's letter for a space: its models cannot tell the two apart
ALGORITHMS = ("unigram", "bpe")
PIECES = ("words", "phrases")
END = "<end>"
# Scores of unigram pieces trained here are multiples of this, so that float32 adds those of about 1 MB of text
# without rounding and equal sums are ties in any library.
SCORE_STEP = 1 / 8
PIECE = ModelProto.SentencePiece
TEXT = (PIECE.NORMAL, PIECE.BYTE)  # types of pieces that encode text


def read_proto(path: Path) -> ModelProto:
    """The protocol buffer of a model file. Errors: DataError for another file."""
    try:
        return ModelProto.FromString(path.read_bytes())
    except Exception as error:  # protobuf's errors have no common type
        remedy = "Set tokenizer.kind=huggingface." if path.suffix == ".json" else "Give the model file."
        raise DataError(f"{path} is no SentencePiece model ({error}). {remedy}") from error


def load(path: Path, roles: Mapping[str, str] | None = None) -> Tokenizer:
    """The tokenizer of a model file; byte-exact if the model neither rewrites text nor has unknown characters.

    roles: tokens by special id, where they are not the model's own.
    """
    proto, special, sentinels = read_pieces(path, roles or {})
    model = library.SentencePieceProcessor(model_proto=proto.SerializeToString())
    kind = SentencePiece if keeps_text(proto) else RewritingSentencePiece
    fingerprint = fingerprint_of(path) + (json.dumps(roles, sort_keys=True) if roles else "")
    return kind(proto, model, special, fingerprint, sentinels)


def read_pieces(
    path: Path, roles: Mapping[str, str] = MappingProxyType({})
) -> tuple[ModelProto, dict[str, int], tuple[int, ...]]:
    """The model of a file as it is used here, its special ids and its sentinels, which are never met in a text."""
    proto = read_proto(path)
    model = library.SentencePieceProcessor(model_proto=proto.SerializeToString())
    # The model's own settings come before names of pieces.
    apart = {piece.piece: i for i, piece in enumerate(proto.pieces) if piece.type not in TEXT}
    own = {"end": model.eos_id(), "unknown": model.unk_id(), "pad": model.pad_id()}
    special = {**special_ids(apart.get), **{name: i for name, i in own.items() if i >= 0}}
    special |= {name: apart[token] for name, token in roles.items()}
    sentinels = sentinel_ids(apart.get)
    # SentencePiece finds user-defined pieces in a text before all others; control pieces it never finds.
    for i in (*special.values(), *sentinels):
        if proto.pieces[i].type == PIECE.USER_DEFINED:
            proto.pieces[i].type = PIECE.CONTROL
    return proto, special, sentinels


def keeps_text(proto: ModelProto) -> bool:
    """Whether any text survives the round trip through a model."""
    return keeps_inner_text(proto) and not proto.normalizer_spec.add_dummy_prefix


def keeps_inner_text(proto: ModelProto) -> bool:
    """Whether any text survives, but for a space in front."""
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    # Escaped white space is U+2581 in pieces; without it spaces would separate words and be lost.
    return (
        trainer.byte_fallback
        and not trainer.treat_whitespace_as_suffix
        and not normalizer.precompiled_charsmap
        and not normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
    )


class SentencePiece(ByteExact):
    """A model with byte fallback and no normalisation."""

    def __init__(self, proto, model: library.SentencePieceProcessor, *names):
        super().__init__(list(map(_bytes_of, proto.pieces)), *names)
        self._model = model
        self._meta_space = np.array([model.piece_to_id(f"<0x{b:02X}>") for b in META_SPACE.encode()], np.int32)

    def encode(self, text: str) -> np.ndarray:
        if META_SPACE not in text:
            return self._model.encode(text, out_type="numpy")
        # The letter itself is encoded as its three bytes, which no piece with a space can be taken for.
        pieces = []
        for part in text.split(META_SPACE):
            pieces += [self._meta_space, self._model.encode(part, out_type="numpy")]
        return np.concatenate(pieces[1:])

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any(META_SPACE in text for text in texts):
            return super().encode_all(texts)
        # One call for all: it takes longer than encoding a short line.
        return self._model.encode(texts, out_type="numpy", num_threads=1)


def _bytes_of(piece) -> bytes:
    if piece.type == PIECE.BYTE:
        # Byte pieces are spelled "<0x0A>".
        return bytes([int(piece.piece[1:-1], 16)])
    if piece.type in (PIECE.CONTROL, PIECE.UNKNOWN, PIECE.UNUSED):
        return b""
    return piece.piece.replace(META_SPACE, " ").encode("utf-8")


class RewritingSentencePiece(Rewriting):
    """A model that normalises text, as T5's or XLNet's."""

    def __init__(self, proto, model: library.SentencePieceProcessor, *names):
        super().__init__(len(proto.pieces), *names)
        self._model, self._strips = model, proto.normalizer_spec.remove_extra_whitespaces
        self.continues = np.array([p.type in TEXT and not p.piece.startswith(META_SPACE) for p in proto.pieces])
        self.texts = list(map(_bytes_of, proto.pieces))
        self._is_byte = np.array([p.type == PIECE.BYTE for p in proto.pieces])

    def encode(self, text: str) -> np.ndarray:
        return self._model.encode(text, out_type="numpy")

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids, pieces = self.encode(text), self._model.encode(text, out_type=str)
        lengths = [1 if byte else len(p.encode()) for p, byte in zip(pieces, self._is_byte[ids], strict=True)]
        # Pieces join to the normalized text; `raw` is the character where each of its characters, and its end, begins.
        normal, raw = self._model.normalize(text, with_offsets=True)
        starts, ends = offsets.trim(normal.replace(META_SPACE, " "), *offsets.of_bytes(normal, lengths))
        raw = np.array(raw, np.int32)
        # Several characters may come from one, and one from several: it ends where the next one begins.
        begins = np.unique(raw)
        after = begins[np.minimum(np.searchsorted(begins, raw, side="right"), len(begins) - 1)]
        for i in np.flatnonzero(after - raw > 1):
            # Characters that the normalizer drops belong to no piece.
            while after[i] > raw[i] + 1 and not self._model.normalize(text[after[i] - 1]).strip(META_SPACE):
                after[i] -= 1
        return ids, raw[starts], np.where(ends > starts, after[ends - 1], raw[starts])

    def join(self, ids: list[int]) -> str:
        text = self._model.decode([i for i in ids if i != self.special["unknown"]])
        return text.strip() if self._strips else text  # a space before an unknown token may be left


def train(texts: Iterable[str], vocab_size: int, algorithm: str, pieces: str) -> bytes:
    """Trains a model on `texts` and returns the model file's content: the same for the same texts on any machine.

    pieces: `words` keeps a piece within a word, or within a run of white space; `phrases` lets pieces span words,
    punctuation and a newline with the indentation after it. On Python source, with 4,096 pieces of BPE, that is
    4.1 bytes a token instead of 3.2; unigram then takes minutes to train. A text may yield fewer than `vocab_size`
    pieces. Errors: DataError if the vocabulary is too small for the text.
    """
    sentences = list(_sentences(texts))
    try:
        return _train(sentences, vocab_size, algorithm, pieces)
    except RuntimeError as error:
        # The library refuses a size above what the text yields, and names the highest possible one.
        if most := re.search(r"too high .*<= (\d+)", str(error)):
            return _train(sentences, int(most[1]), algorithm, pieces)
        least = re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error))
        remedy = f"Bytes and frequent characters take {least[1]}; set that or more" if least else str(error)
        raise DataError(f"tokenizer.vocab_size={vocab_size}: SentencePiece cannot train. {remedy}.") from None


def _train(sentences: Iterable[str], vocab_size: int, algorithm: str, pieces: str) -> bytes:
    content = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=content,
        model_type=algorithm,
        vocab_size=vocab_size,
        byte_fallback=True,
        # Without its own piece, a space would fall back to bytes of that letter.
        required_chars=META_SPACE,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_by_whitespace=pieces == "words",
        split_by_unicode_script=pieces == "words",
        split_by_number=pieces == "words",
        unk_id=0,
        eos_id=1,
        eos_piece=END,
        bos_id=-1,
        pad_id=-1,
        max_sentence_length=1 << 30,
        # Fixed, since scores are sums over threads and so depend on their number.
        num_threads=4,
        minloglevel=3,
    )
    return _round_scores(content.getvalue()) if algorithm == "unigram" else content.getvalue()


def _round_scores(content: bytes) -> bytes:
    proto = ModelProto.FromString(content)
    for piece in proto.pieces:
        piece.score = round(piece.score / SCORE_STEP) * SCORE_STEP
    return proto.SerializeToString(deterministic=True)


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Lines, each with the white space before it, so that newline and indentation can become one piece."""
    # Cut before the white space that ends a line; SentencePiece has no pieces across sentences.
    for text in texts:
        yield from filter(None, re.split(r"(?<=\S)(?=[^\S\n]*\n)", text))
