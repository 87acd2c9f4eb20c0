"""XLM-R's and CamemBERT's `sentencepiece.bpe.model` as a tokenizer.json.

The pieces of a SentencePiece unigram model get fairseq's ids: those of the model plus 1 (XLM-R) or plus 4 (CamemBERT),
after special ones; the mask is last.
"""

from collections.abc import Mapping
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.tokenizers.huggingface import META_SPACE, library
from input_pipeline.tokenizers.sentencepiece import read_proto

FILE = "sentencepiece.bpe.model"
UNKNOWN, MASK = "<unk>", "<mask>"
OWN = (UNKNOWN, "<s>", "</s>")  # the first pieces of both models
# Special entries before the pieces, with scores, and how many of the model's own first pieces they replace. fairseq's
# dictionary for CamemBERT began with special entries twice; the unused ones keep their ids.
PREFIXES = {
    "xlm_roberta": ([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), (UNKNOWN, 0.0)], 3),
    "camembert": (
        [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), (UNKNOWN, 0.0), ("<unk>NOTUSED", -100.0)],
        1,
    ),
}


def read(path: Path, settings: Mapping) -> bytes:
    """The tokenizer.json of a model file of the kind in `settings`. Errors: DataError for another file."""
    parts, proto = library(), read_proto(path)
    if not _is_fairseq(proto):
        raise DataError(f"{path} is no model of tokenizer.kind={settings['kind']}. Give its {FILE}.")
    before, left_out = PREFIXES[settings["kind"]]
    entries = [*before, *((piece.piece, piece.score) for piece in proto.pieces[left_out:]), (MASK, 0.0)]
    model = parts.Tokenizer(parts.models.Unigram(entries, unk_id=before.index((UNKNOWN, 0.0)), byte_fallback=False))
    if rules := proto.normalizer_spec.precompiled_charsmap:
        model.normalizer = parts.normalizers.Precompiled(rules)
    split = parts.pre_tokenizers
    # White space of any length is one space, and words are cut apart before pieces are chosen.
    model.pre_tokenizer = split.Sequence([split.WhitespaceSplit(), split.Metaspace(META_SPACE, "always")])
    model.decoder = parts.decoders.Metaspace(META_SPACE, "always")
    special = [name for name, _ in before] + [name for name in OWN if name not in dict(before)] + [MASK]
    model.add_special_tokens(special)
    model.post_processor = parts.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, model.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return model.to_str().encode("utf-8")


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
