"""SentencePiece models: reading any, and training one that keeps every character of its text."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece as library
from sentencepiece import sentencepiece_model_pb2

from input_pipeline.errors import DataError
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


def load(path: Path) -> Tokenizer:
    """The tokenizer of a model file; byte-exact if the model neither rewrites text nor has unknown characters."""
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
        model = library.SentencePieceProcessor(model_proto=proto.SerializeToString())
    except Exception as error:
        remedy = "Set tokenizer.kind=huggingface." if path.suffix == ".json" else "Give the .model file."
        raise DataError(f"{path} is no SentencePiece model ({error}). {remedy}") from error
    if model.eos_id() < 0:
        raise DataError(f"{path} has no end-of-sentence piece. Train it with eos_id set.")
    special, sentinels = _special(proto, model)
    if met := [i for i in (*special.values(), *sentinels) if proto.pieces[i].type == _USER_DEFINED]:
        for i in met:  # else the model would find them in text that spells them
            proto.pieces[i].type = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
        model = library.SentencePieceProcessor(model_proto=proto.SerializeToString())
    if _keeps_text(proto):
        return SentencePiece(model, special, sentinels, fingerprint_of(path))
    return Rewriting(
        encode=lambda text: model.encode(text, out_type="numpy"),
        decode=model.decode,
        vocab_size=model.vocab_size(),
        special=special,
        fingerprint=fingerprint_of(path),
        sentinels=sentinels,
        continues=np.array([p.type in _TEXT and not p.piece.startswith(META_SPACE) for p in proto.pieces]),
    )


class Pieces(NamedTuple):
    """The pieces of a model in the order of their ids, with their scores.

    unigram: its algorithm, else bpe. unknown: id of the unknown piece. text: ids of pieces of text, without bytes;
    special: ids without text. keep_text: whether any text survives the round trip.
    """

    names: list[str]
    scores: list[float]
    unigram: bool
    unknown: int
    text: frozenset[int]
    special: list[int]
    keep_text: bool


def read_pieces(path: Path) -> Pieces:
    """The pieces of a model file."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(path.read_bytes())
    kinds = [piece.type for piece in proto.pieces]
    return Pieces(
        names=[piece.piece for piece in proto.pieces],
        scores=[piece.score for piece in proto.pieces],
        unigram=proto.trainer_spec.model_type == sentencepiece_model_pb2.TrainerSpec.UNIGRAM,
        unknown=proto.trainer_spec.unk_id,
        text=frozenset(i for i, kind in enumerate(kinds) if kind == _TEXT[0]),
        special=[i for i, kind in enumerate(kinds) if kind not in _TEXT],
        keep_text=_keeps_text(proto),
    )


_TEXT = (sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL, sentencepiece_model_pb2.ModelProto.SentencePiece.BYTE)
_USER_DEFINED = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED


def _special(proto, model: library.SentencePieceProcessor) -> tuple[dict[str, int], tuple[int, ...]]:
    """Special ids by name, and sentinels: the model's own settings first, then pieces by name."""
    apart = {piece.piece: i for i, piece in enumerate(proto.pieces) if piece.type not in _TEXT}  # not met in a text
    own = {"end": model.eos_id(), "unknown": model.unk_id(), "pad": model.pad_id()}
    return {**special_ids(apart.get), **{name: i for name, i in own.items() if i >= 0}}, sentinel_ids(apart.get)


def _keeps_text(proto) -> bool:
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    return (
        trainer.byte_fallback
        and not normalizer.precompiled_charsmap
        and not normalizer.add_dummy_prefix
        and not normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
    )


class SentencePiece(ByteExact):
    """A model with byte fallback and no normalisation."""

    def __init__(
        self,
        model: library.SentencePieceProcessor,
        special: Mapping[str, int],
        sentinels: tuple[int, ...],
        fingerprint: str,
    ):
        super().__init__([_bytes_of(model, i) for i in range(model.vocab_size())], special, fingerprint, sentinels)
        self._model = model
        self._meta_space = np.array([model.piece_to_id(f"<0x{b:02X}>") for b in META_SPACE.encode()], np.int32)

    def encode(self, text: str) -> np.ndarray:
        if META_SPACE not in text:
            return self._model.encode(text, out_type="numpy")
        pieces = []  # the letter itself is encoded as its bytes
        for part in text.split(META_SPACE):
            pieces += [self._meta_space, self._model.encode(part, out_type="numpy")]
        return np.concatenate(pieces[1:])

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any(META_SPACE in text for text in texts):
            return super().encode_all(texts)
        return self._model.encode(texts, out_type="numpy", num_threads=1)  # a call takes longer than a short line


def _bytes_of(model: library.SentencePieceProcessor, token: int) -> bytes:
    if model.is_byte(token):
        return bytes([int(model.id_to_piece(token)[1:-1], 16)])
    if model.is_control(token) or model.is_unknown(token) or model.is_unused(token):
        return b""
    return model.id_to_piece(token).replace(META_SPACE, " ").encode("utf-8")


def check(algorithm: str, pieces: str) -> None:
    """Raises DataError for an unknown `algorithm` or `pieces`."""
    for key, value, choices in (("algorithm", algorithm, ALGORITHMS), ("pieces", pieces, PIECES)):
        if value not in choices:
            raise DataError(f"tokenizer.{key}={value} is unknown. Choose one of: {', '.join(choices)}.")


def train(texts: Iterable[str], vocab_size: int, algorithm: str, pieces: str) -> bytes:
    """Trains a model on `texts` and returns the model file's content: the same for the same texts on any machine.

    pieces: `words` keeps a piece within a word, or within a run of white space; `phrases` lets pieces span words,
    punctuation and a newline with the indentation after it. On Python source, with 4,096 pieces of BPE, that is
    4.1 bytes a token instead of 3.2; unigram then takes minutes to train. A text may yield fewer than `vocab_size`
    pieces. Errors: DataError if the vocabulary is too small for the text, and those of `check`.
    """
    check(algorithm, pieces)
    sentences = list(_sentences(texts))
    try:
        return _trained(sentences, vocab_size, algorithm, pieces)
    except RuntimeError as error:
        # The library refuses a size above what the text yields, and names the highest possible one.
        most = re.search(r"too high .*<= (\d+)", str(error))
        if not most:
            raise _explained(str(error), vocab_size) from None
        return _trained(sentences, int(most[1]), algorithm, pieces)


def _trained(sentences: Iterable[str], vocab_size: int, algorithm: str, pieces: str) -> bytes:
    content = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=content,
        model_type=algorithm,
        vocab_size=vocab_size,
        byte_fallback=True,
        required_chars=META_SPACE,  # without its own piece, a space would fall back to bytes of that letter
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
        num_threads=4,  # fixed: the pieces depend on sums over threads
        minloglevel=3,
    )
    return content.getvalue()


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Lines, each with the white space before it, so that newline and indentation can become one piece."""
    for text in texts:
        yield from filter(None, re.split(r"(?<=\S)(?=[^\S\n]*\n)", text))


def _explained(message: str, vocab_size: int) -> DataError:
    """The library's error in terms of the config."""
    setting = f"tokenizer.vocab_size={vocab_size}"
    if match := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return DataError(f"{setting} is too small: bytes and frequent characters take {match[1]}. Set that or more.")
    if "sentences_.empty()" in message:
        return DataError("data.train has no text to train the tokenizer on. Check the source.")
    return DataError(f"{setting}: SentencePiece cannot train ({message}). Change the tokenizer's settings.")
