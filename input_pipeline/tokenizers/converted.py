"""Files that the classes of single models read, told anew as a tokenizer.json: GPT's, XLM-R's and CamemBERT's.

GPT's `vocab.json` and `merges.txt`: a BPE of words that are lower-cased, without accents, and split at punctuation as
BERT's. XLM-R's and CamemBERT's `sentencepiece.bpe.model`: the pieces of a unigram model of SentencePiece with the ids
that fairseq gave them, which are those of the model moved on by 1 and 4, behind special ones; the mask is the last.
"""

import json
from pathlib import Path

from sentencepiece import sentencepiece_model_pb2

from input_pipeline.errors import DataError
from input_pipeline.tokenizers.huggingface import library
from input_pipeline.tokenizers.sentencepiece import META_SPACE
from input_pipeline.tokenizers.subwords import END, MERGES, UNKNOWN, VOCABULARY

PIECES = "sentencepiece.bpe.model"
MASK = "<mask>"
FILES = dict.fromkeys(("gpt", "ctrl", "xlm"), VOCABULARY) | dict.fromkeys(("xlm_roberta", "camembert"), PIECES)
# What stands before the pieces, with its scores, and how many of the model's own pieces are left out for that. Those of
# CamemBERT's that are not used are of a dictionary that began with special entries twice.
BEFORE = {
    "xlm_roberta": ([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), (UNKNOWN, 0.0)], 3),
    "camembert": (
        [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), (UNKNOWN, 0.0), ("<unk>NOTUSED", -100.0)],
        1,
    ),
}
OWN = (UNKNOWN, "<s>", "</s>")  # the first pieces of the models of both


def read(path: Path, kind: str) -> bytes:
    """The tokenizer.json of a file of one of the kinds above. Errors: DataError where it is none of that kind."""
    model = _of_merges(path) if kind == "gpt" else _of_pieces(path, kind)
    return model.to_str().encode("utf-8")


def pieces(path: Path) -> set[str]:
    """The pieces that a vocabulary's file has, of any kind; none of one that is not readable, as who opens it says."""
    try:
        if path.suffix == ".model":
            return {piece.piece for piece in sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes()).pieces}
        text = path.read_text(encoding="utf-8")
        return set(json.loads(text)) if path.suffix == ".json" else {line.rstrip("\r") for line in text.split("\n")}
    except Exception:  # the library raises nothing more precise
        return set()


def _of_merges(path: Path):
    parts = library()
    try:
        vocabulary = json.loads(path.read_text(encoding="utf-8"))
        lines = path.with_name(MERGES).read_text(encoding="utf-8").split("\n")
        merges = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
        model = parts.models.BPE(vocabulary, merges, unk_token=UNKNOWN, end_of_word_suffix=END, fuse_unk=False)
    except Exception as error:  # the library raises nothing more precise
        raise DataError(
            f"{path} is no {VOCABULARY} of GPT's with its {MERGES} beside it ({error}); bring both"
        ) from error
    if UNKNOWN not in vocabulary:
        raise DataError(f"{path} has no {UNKNOWN}, which stands for what it lacks; give GPT's {VOCABULARY}")
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
    except Exception as error:  # the library raises nothing more precise
        raise DataError(f"{path} is no SentencePiece model ({error}); give the {PIECES}") from error
    if unlike := _unlike(proto):
        raise DataError(
            f"{path} {unlike}, as no model of tokenizer.kind = {kind} does, so that its ids are not told; give the "
            f"{PIECES} that was trained with it, or a tokenizer.json with tokenizer.kind = huggingface"
        )
    before, left_out = BEFORE[kind]
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


def _unlike(proto) -> str:
    """What a model has that the classes of both do not have, or not as SentencePiece has it; empty where nothing."""
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type != trainer.UNIGRAM:
        return "is no unigram model"
    if trainer.byte_fallback:
        return "tells what it has no piece for by bytes"
    if trainer.treat_whitespace_as_suffix or not (normalizer.add_dummy_prefix and normalizer.remove_extra_whitespaces):
        return "has white space otherwise than before each word, once"
    if tuple(piece.piece for piece in proto.pieces[: len(OWN)]) != OWN:
        return f"does not begin with {', '.join(OWN)}"
    if apart := [piece.piece for piece in proto.pieces[len(OWN) :] if piece.type != piece.NORMAL]:
        return f"has pieces that text is not split into by their scores, such as {apart[0]}"
    return ""
