"""Conversion to tokenizer.json: of files of single models' classes, and of a run's own tokenizer for export.

GPT's `vocab.json` and `merges.txt`: a BPE of words that are lower-cased, without accents, and split at punctuation as
BERT's. XLM-R's and CamemBERT's `sentencepiece.bpe.model`: the pieces of a SentencePiece unigram model with fairseq's
ids, which are those of the model plus 1 and plus 4, after special ones; the mask is last.

Exports give the same ids of the same text, with two exceptions: SentencePiece's letter for a space, U+2581, is read as
a space, and the name of a special token as that token.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentencepiece import sentencepiece_model_pb2

from input_pipeline.errors import DataError
from input_pipeline.tokenizers.base import is_code
from input_pipeline.tokenizers.bpe import END, MERGES, UNKNOWN, VOCABULARY
from input_pipeline.tokenizers.huggingface import letters, library
from input_pipeline.tokenizers.sentencepiece import META_SPACE, Pieces, read_pieces

PIECES = "sentencepiece.bpe.model"
MASK = "<mask>"
# Special entries before the pieces, with scores, and how many of the model's own first pieces they replace. fairseq's
# dictionary for CamemBERT began with special entries twice; the unused ones keep their ids.
PREFIXES = {
    "xlm_roberta": ([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), (UNKNOWN, 0.0)], 3),
    "camembert": (
        [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), (UNKNOWN, 0.0), ("<unk>NOTUSED", -100.0)],
        1,
    ),
}
OWN = (UNKNOWN, "<s>", "</s>")  # the first pieces of both models

LANGUAGE = "language"  # in a template: the code of the first language, if the tokenizer has any
TEXTS = ("$A", "$B")  # in a template
END_OF_TEXT = "<|endoftext|>"  # names the end token of a tokenizer of bytes


def read(path: Path, kind: str) -> bytes:
    """The tokenizer.json of a file of kind gpt, xlm_roberta or camembert. Errors: DataError for another file."""
    model = _of_merges(path) if kind == "gpt" else _of_pieces(path, kind)
    return model.to_str().encode("utf-8")


def piece_names(path: Path) -> set[str]:
    """The pieces in a vocabulary file of any kind; none if it is unreadable, which opening it reports."""
    try:
        if path.suffix == ".model":
            return {piece.piece for piece in sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes()).pieces}
        text = path.read_text(encoding="utf-8")
        return set(json.loads(text)) if path.suffix == ".json" else {line.rstrip("\r") for line in text.split("\n")}
    except Exception:  # protobuf's errors have no common type
        return set()


def _of_merges(path: Path):
    parts = library()
    try:
        vocabulary = json.loads(path.read_text(encoding="utf-8"))
        lines = path.with_name(MERGES).read_text(encoding="utf-8").split("\n")
        merges = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
        model = parts.models.BPE(vocabulary, merges, unk_token=UNKNOWN, end_of_word_suffix=END, fuse_unk=False)
    except Exception as error:  # the library's errors have no common type
        raise DataError(f"{path} is not GPT's {VOCABULARY} with {MERGES} in its folder ({error}).") from error
    if UNKNOWN not in vocabulary:
        raise DataError(f"{path} has no {UNKNOWN}. Give GPT's {VOCABULARY}.")
    model = parts.Tokenizer(model)
    model.normalizer = parts.normalizers.BertNormalizer(lowercase=True)
    model.pre_tokenizer = parts.pre_tokenizers.BertPreTokenizer()
    model.decoder = parts.decoders.BPEDecoder(suffix=END)
    model.add_special_tokens([UNKNOWN])
    return model


def _of_pieces(path: Path, kind: str):
    parts, proto = library(), sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # the library's errors have no common type
        raise DataError(f"{path} is no SentencePiece model ({error}). Give the {PIECES}.") from error
    if not _is_fairseq(proto):
        raise DataError(f"{path} is no model of tokenizer.kind={kind}. Give its {PIECES}, or use kind=huggingface.")
    before, left_out = PREFIXES[kind]
    entries = [*before, *((piece.piece, piece.score) for piece in proto.pieces[left_out:]), (MASK, 0.0)]
    model = parts.Tokenizer(parts.models.Unigram(entries, unk_id=before.index((UNKNOWN, 0.0)), byte_fallback=False))
    if rules := proto.normalizer_spec.precompiled_charsmap:
        model.normalizer = parts.normalizers.Precompiled(rules)
    split = parts.pre_tokenizers
    model.pre_tokenizer = split.Sequence([split.WhitespaceSplit(), split.Metaspace(META_SPACE, "always")])
    model.decoder = parts.decoders.Metaspace(META_SPACE, "always")
    special = [name for name, _ in before] + [name for name in OWN if name not in dict(before)] + [MASK]
    model.add_special_tokens(special)
    frame = [(name, model.token_to_id(name)) for name in ("<s>", "</s>")]
    model.post_processor = parts.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=frame
    )
    return model


def _is_fairseq(proto) -> bool:
    """Whether a model is of the form that the classes of XLM-R and CamemBERT read; others would get wrong ids."""
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    return (
        trainer.model_type == trainer.UNIGRAM
        and not trainer.byte_fallback
        and not trainer.treat_whitespace_as_suffix
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and tuple(piece.piece for piece in proto.pieces[: len(OWN)]) == OWN
        and all(piece.type == piece.NORMAL for piece in proto.pieces[len(OWN) :])
    )


def tokenizer_json(kind: str, path: Path | None, added: Sequence[str]):
    """A tokenizer of `kind` in the file `path` as the library's `Tokenizer`, with `added` special tokens."""
    if kind == "sentencepiece":
        model = _from_pieces(path)
    elif kind == "bytes":
        model = _from_bytes()
    else:
        model = library().Tokenizer.from_file(str(path))
    model.add_special_tokens(list(added))
    return model


def _from_bytes():
    """A byte-level BPE without merges."""
    parts = library()
    model = parts.Tokenizer(parts.models.BPE(letters(), []))
    model.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = parts.decoders.ByteLevel()
    model.add_special_tokens([END_OF_TEXT])
    return model


def _from_pieces(path: Path):
    """A SentencePiece model that keeps all text, as BPE or unigram with byte fallback."""
    parts, pieces = library(), read_pieces(path)
    if not pieces.keep_text:
        raise DataError(f"{path} rewrites text, which a tokenizer.json cannot. Export it with a T5 or mT5 model.")
    if pieces.unigram:
        scores = list(zip(pieces.names, pieces.scores, strict=True))
        model = parts.Tokenizer(parts.models.Unigram(scores, unk_id=pieces.unknown, byte_fallback=True))
    else:
        vocabulary = {piece: i for i, piece in enumerate(pieces.names)}
        unknown = pieces.names[pieces.unknown]
        merged = parts.models.BPE(vocabulary, _merges(pieces), unk_token=unknown, fuse_unk=True, byte_fallback=True)
        model = parts.Tokenizer(merged)
    model.normalizer = parts.normalizers.Replace(" ", META_SPACE)
    decoders = parts.decoders
    model.decoder = decoders.Sequence([decoders.Replace(META_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    model.add_special_tokens([pieces.names[i] for i in pieces.special])
    return model


def _merges(pieces: Pieces) -> list[tuple[str, str]]:
    """The merges of a BPE model, by the score of their result, highest first."""
    scores = {piece: pieces.scores[i] for i, piece in enumerate(pieces.names) if i in pieces.text}
    merges = [
        (scores[piece], piece[:cut], piece[cut:])
        for piece in scores
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    merges.sort(key=lambda one: -one[0])
    return [(left, right) for _, left, right in merges]


def set_template(model, special: Mapping[str, int], single: Sequence[str], pair: Sequence[str]) -> None:
    """Gives a library's `Tokenizer` the template of a text and of a pair of texts.

    Parts are names of the ids in `special`, `LANGUAGE`, and $A and $B for the texts.
    """
    if codes := [i for name, i in special.items() if is_code(name)]:
        special = {**special, LANGUAGE: min(codes)}
    names = {name: model.id_to_token(i) for name, i in special.items()}
    # A tokenizer made for a task without framed rows lacks these ids: they are left out of the template.
    single, pair = ([part for part in parts if part in names or part in TEXTS] for parts in (single, pair))

    def with_types(parts: Sequence[str]) -> list[str]:
        """Each part with its token type: 1 from the second text on."""
        second = parts.index("$B") if "$B" in parts else len(parts)
        return [f"{names.get(part, part)}:{int(place >= second)}" for place, part in enumerate(parts)]

    used = [(names[name], special[name]) for name in {*single, *pair} & names.keys()]
    model.post_processor = library().processors.TemplateProcessing(
        single=with_types(single), pair=with_types(pair), special_tokens=used
    )
