"""A work folder's tokenizer as a tokenizer.json, which other libraries read: the same ids of the same text.

Files that are one already are handed on. SentencePiece's models of our own, which keep all text, are told anew as BPE
or unigram with byte fallback, and bytes as a BPE that merges nothing. Alone two things in a text are read otherwise:
SentencePiece's letter for a space, U+2581, as a space, and the name of a special token as that token.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.tokenizers import saved, subwords
from input_pipeline.tokenizers.huggingface import letters, library
from input_pipeline.tokenizers.names import is_code
from input_pipeline.tokenizers.sentencepiece import META_SPACE, Pieces, pieces

LANGUAGE = "language"  # in a template: the first code of a language that there is, none where none is
JSON = ("tokenizer.json", "wordpiece.json")  # files of the library
TEXTS = ("$A", "$B")  # in a template
END = "<|endoftext|>"  # of a tokenizer of bytes, whose end token has no name


def sentencepiece_file(folder: Path) -> Path | None:
    """The model file of a SentencePiece tokenizer that rewrites text, which its own library alone does alike."""
    made = saved.made(folder)
    if made["kind"] != "sentencepiece" or pieces(saved.whole(folder, made)).keep_text:
        return None
    return saved.whole(folder, made)


def subwords_files(folder: Path) -> dict[str, bytes]:
    """The files of a tokenizer of kind ctrl or xlm, by name. Errors: DataError where it has ids on top of theirs."""
    if names := saved.added(folder):
        raise DataError(
            f"{folder} holds a tokenizer of kind {saved.made(folder)['kind']} with ids on top of its file's "
            f"({', '.join(names[:3])}), which its class has no place for; set --config.tokenizer.sentinels=0"
        )
    return subwords.files(saved.whole(folder, saved.made(folder)))


def tokenizer_json(folder: Path, template: Sequence[str] = (), pair: Sequence[str] = ()):
    """The tokenizer of `folder` as the library's `Tokenizer`: `to_str`, `id_to_token`.

    `template` and `pair` are what a text and a pair of texts become where special tokens are asked for: names of
    special ids, `LANGUAGE`, and $A and $B for the texts; a file that says so itself is left as it is. Errors:
    DataError for a kind that has no like there.
    """
    made = saved.made(folder)
    build = {"sentencepiece": _of_pieces, "bytes": _of_bytes}
    build |= {kind: _of_file for kind, name in saved.FILES.items() if name in JSON}
    if made["kind"] not in build:
        raise DataError(
            f"{folder} holds a tokenizer of kind {made['kind']}, which no tokenizer.json can be; those of kind "
            f"{', '.join(build)} can be exported"
        )
    model = build[made["kind"]](folder, made)
    model.add_special_tokens(saved.added(folder))
    opened = saved.open_folder(folder)
    if template and model.post_processor is None:
        model.post_processor = _template(model, opened.special, template, pair)
    return model


def _of_file(folder: Path, made: Mapping):
    return library().Tokenizer.from_file(str(saved.whole(folder, made)))


def _of_bytes(folder: Path, made: Mapping):
    parts = library()
    model = parts.Tokenizer(parts.models.BPE(letters(), []))
    model.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = parts.decoders.ByteLevel()
    model.add_special_tokens([END])
    return model


def _of_pieces(folder: Path, made: Mapping):
    parts, found = library(), pieces(saved.whole(folder, made))
    if not found.keep_text:
        raise DataError(
            f"{folder} holds a SentencePiece model that rewrites text, which a tokenizer.json would do otherwise; "
            "export it with a model whose class reads the file itself, T5 or mT5"
        )
    if found.unigram:
        scores = list(zip(found.pieces, found.scores, strict=True))
        model = parts.Tokenizer(parts.models.Unigram(scores, unk_id=found.unknown, byte_fallback=True))
    else:
        vocabulary = {piece: i for i, piece in enumerate(found.pieces)}
        unknown = found.pieces[found.unknown]
        merged = parts.models.BPE(vocabulary, _merges(found), unk_token=unknown, fuse_unk=True, byte_fallback=True)
        model = parts.Tokenizer(merged)
    model.normalizer = parts.normalizers.Replace(" ", META_SPACE)
    decoders = parts.decoders
    model.decoder = decoders.Sequence([decoders.Replace(META_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    model.add_special_tokens([found.pieces[i] for i in found.apart])
    return model


def _merges(found: Pieces) -> list[tuple[str, str]]:
    """The pairs that a BPE model joins, in the order of the scores of what they make."""
    scores = {piece: found.scores[i] for i, piece in enumerate(found.pieces) if i in found.text}
    merges = [
        (scores[piece], piece[:cut], piece[cut:])
        for piece in scores
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    merges.sort(key=lambda one: -one[0])
    return [(left, right) for _, left, right in merges]


def _template(model, special: Mapping[str, int], single: Sequence[str], pair: Sequence[str]):
    if codes := [i for name, i in special.items() if is_code(name)]:  # else of one language, of which nothing is said
        special = {**special, LANGUAGE: min(codes)}
    names = {name: model.id_to_token(i) for name, i in special.items()}
    # Rows of a task that frames no text need no ids for that, and a tokenizer made for it has none.
    single, pair = ([part for part in parts if part in names or part in TEXTS] for parts in (single, pair))

    def written(parts: Sequence[str]) -> list[str]:
        """Each part, and of which text it is."""
        second = parts.index("$B") if "$B" in parts else len(parts)
        return [f"{names.get(part, part)}:{int(place >= second)}" for place, part in enumerate(parts)]

    used = [(names[name], special[name]) for name in {*single, *pair} & names.keys()]
    return library().processors.TemplateProcessing(single=written(single), pair=written(pair), special_tokens=used)
