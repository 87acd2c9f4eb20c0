"""Export of a run's tokenizer: as a tokenizer.json, or as the files that one model's class reads.

An export gives the same ids of the same text, with two exceptions: SentencePiece's letter for a space, U+2581, is read
as a space, and the name of a special token as that token, unless it is called with `split_special_tokens=True`. A
tokenizer that would read any other text differently is refused.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentencepiece.sentencepiece_model_pb2 import TrainerSpec

from input_pipeline.errors import DataError
from input_pipeline.tokenizers import bpe, huggingface, sentencepiece
from input_pipeline.tokenizers.base import is_code
from input_pipeline.tokenizers.huggingface import letters, library
from input_pipeline.tokenizers.sentencepiece import META_SPACE, PIECE
from input_pipeline.tokenizers.settings import KINDS
from input_pipeline.tokenizers.store import added_tokens, open_folder, read_settings, settings_chain, verified_file

LANGUAGE = "language"  # in a template: the code of the first language, if the tokenizer has any
TEXTS = ("$A", "$B")  # in a template
END_OF_TEXT = "<|endoftext|>"  # names the end token of a tokenizer of bytes


def sentencepiece_model(folder: Path) -> tuple[bytes, dict[int, str]] | None:
    """(model file, {id: special token}) of a SentencePiece tokenizer that rewrites text, which only its library does.

    Errors: DataError if Transformers' class for the library gives other text.
    """
    settings = read_settings(folder)
    if settings["kind"] != "sentencepiece":
        return None
    path = verified_file(folder, settings)
    proto, special, sentinels = sentencepiece.read_pieces(path)
    if sentencepiece.keeps_inner_text(proto):
        return None
    if reason := _undecodable(proto):
        raise DataError(f"{path}: Transformers cannot decode {reason}. Train with another tokenizer to export.")
    # mT5's sentinels begin with a space in the file.
    tokens = {i: proto.pieces[i].piece.removeprefix(META_SPACE) for i in (*special.values(), *sentinels)}
    tokens |= {
        i: piece.piece for i, piece in enumerate(proto.pieces) if piece.type == PIECE.CONTROL and i not in tokens
    }
    tokens |= dict(enumerate(added_tokens(folder), len(proto.pieces)))
    # As it is, unless a special token could be met in a text.
    same = proto == sentencepiece.read_proto(path)
    return path.read_bytes() if same else proto.SerializeToString(deterministic=True), tokens


def _undecodable(proto) -> str:
    """The part of a model that `SentencePieceBackend` decodes differently, or nothing.

    It joins pieces, and strips white space at both ends.
    """
    if proto.trainer_spec.byte_fallback:
        return "byte pieces of a model that rewrites text"
    if not proto.normalizer_spec.remove_extra_whitespaces or proto.denormalizer_spec.precompiled_charsmap:
        return "text of this model's normalizer"
    spaces = any(letter.isspace() for piece in proto.pieces for letter in piece.piece)
    return "white space other than U+2581 in pieces" if spaces else ""


def class_files(folder: Path) -> dict[str, bytes]:
    """The files of a tokenizer of kind ctrl or xlm, by name. Errors: DataError if it has added ids."""
    settings = read_settings(folder)
    if tokens := added_tokens(folder):
        raise DataError(f"{folder}: {settings['kind']}'s files hold no added ids ({tokens[0]}). Use no sentinels.")
    return bpe.files(verified_file(folder, settings))


def tokenizer_json(folder: Path, single: Sequence[str] = (), pair: Sequence[str] = (), keep: bool = True):
    """The tokenizer of `folder` as Hugging Face's `Tokenizer`.

    `single` and `pair` are the templates of a text and of a pair of texts: names of special ids, `LANGUAGE`, and $A and
    $B for the texts. keep: a file that has its own template keeps it. Errors: DataError for kinds that no
    tokenizer.json can express.
    """
    settings = read_settings(folder)
    kind = settings["kind"]
    if kind == "bytes":
        model = _from_bytes()
    elif kind == "sentencepiece":
        model = _from_sentencepiece(verified_file(folder, settings))
    elif KINDS[kind].is_tokenizer_json:
        _, model = huggingface.read(verified_file(folder, settings))
        unknown = model.id_to_token(open_folder(folder).special.get("unknown", len(model.get_vocab())))
        if (word := settings_chain(folder)[-1].get("unknown")) and word != unknown:
            raise DataError(
                f"tokenizer.unknown={word} in {folder} is not the tokenizer's {unknown}. Train without it to export."
            )
    else:
        raise DataError(f"tokenizer.kind={kind} in {folder} cannot be a tokenizer.json. Train another kind to export.")
    model.add_special_tokens(added_tokens(folder))
    if single and not (keep and model.post_processor):
        own, before = model.post_processor, _framed(model)
        _set_template(model, open_folder(folder).special, single, pair)
        if own and _framed(model) == before:
            model.post_processor = own
    return model


def _framed(model) -> list[list[int]]:
    """Ids of a text and of a pair with what is around them."""
    return [model.encode("a").ids, model.encode("a", "b").ids]


def _from_bytes():
    """A byte-level BPE without merges."""
    parts = library()
    model = parts.Tokenizer(parts.models.BPE(letters(), []))
    model.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = parts.decoders.ByteLevel()
    model.add_special_tokens([END_OF_TEXT])
    return model


def _from_sentencepiece(path: Path):
    """A SentencePiece model that keeps all text, but for a space in front, as BPE or unigram with byte fallback."""
    parts, (proto, *_) = library(), sentencepiece.read_pieces(path)
    is_unigram, normal = proto.trainer_spec.model_type == TrainerSpec.UNIGRAM, _scores(proto)
    if reason := _inexpressible(proto, is_unigram, normal):
        raise DataError(f"{path}: tokenizer.json cannot express {reason}. Train with another tokenizer to export.")
    names, unknown = [piece.piece for piece in proto.pieces], proto.trainer_spec.unk_id
    # Names of pieces that no text gives, such as <0x0A>: their letters must always be the better choice, and a letter
    # that no piece has ends the piece.
    hidden = [piece.piece for piece in proto.pieces if piece.type not in (PIECE.NORMAL, PIECE.USER_DEFINED)]
    ends = "".join(sorted({letter for name in hidden for letter in name} - normal.keys()))
    if is_unigram:
        worst = (max(map(len, hidden)) + 1) * min(normal.values())
        model = parts.models.Unigram([(name, normal.get(name, worst)) for name in names], unknown, byte_fallback=True)
    else:
        ids = {name: i for i, name in enumerate(names)}
        model = parts.models.BPE(ids, _merges(normal), unk_token=names[unknown], fuse_unk=True, byte_fallback=True)
    model = parts.Tokenizer(model)
    prefixed = proto.normalizer_spec.add_dummy_prefix
    normalizers, decoders = parts.normalizers, parts.decoders
    steps = [normalizers.Prepend(META_SPACE)] * prefixed + [normalizers.Replace(" ", META_SPACE)]
    model.normalizer = normalizers.Sequence(steps) if prefixed else steps[0]
    if is_unigram and ends:
        model.pre_tokenizer = parts.pre_tokenizers.Split(parts.Regex(f"[{re.escape(ends)}]"), "isolated")
    steps = [decoders.Replace(META_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    model.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * prefixed)
    met = [piece.piece for piece in proto.pieces if piece.type == PIECE.USER_DEFINED]
    model.add_tokens([parts.AddedToken(name, normalized=True, special=False) for name in met])
    special = [piece.piece for piece in proto.pieces if piece.type in (PIECE.CONTROL, PIECE.UNKNOWN)]
    model.add_special_tokens(special)
    return model


def _scores(proto) -> dict[str, float]:
    """Scores of the pieces that text is made of, without user-defined ones."""
    return {piece.piece: piece.score for piece in proto.pieces if piece.type == PIECE.NORMAL}


def _inexpressible(proto, is_unigram: bool, normal: Mapping[str, float]) -> str:
    """The part of a SentencePiece model that a tokenizer.json cannot express, or nothing."""
    met = {piece.piece for piece in proto.pieces if piece.type == PIECE.USER_DEFINED}
    if any(piece.type == PIECE.UNUSED for piece in proto.pieces):
        return "unused pieces"
    if met and proto.normalizer_spec.add_dummy_prefix:
        return "user_defined_symbols next to add_dummy_prefix"
    if lacking := sorted({letter for name in normal for letter in name} - normal.keys() - met):
        return f"a piece with {lacking[0]!r}, which is no piece"
    if is_unigram:
        # SentencePiece adds scores in float32, tokenizer.json in float64: ties differ unless both sums are exact.
        exact = all(score % sentencepiece.SCORE_STEP == 0 for score in normal.values())
        if met or not exact:
            return "user_defined_symbols of unigram" if met else "ties of these unigram scores"
        return ""
    scores = [normal[name] for name in {left + right for left, right in _merges(normal)}]
    return "" if len(set(scores)) == len(scores) else "merges of equal score"


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges of a BPE model, by the score of their result, highest first."""
    # The model has no list of merges: every cut of a piece into two pieces is one, as early as the piece's score says.
    merges = [
        (scores[piece], piece[:cut], piece[cut:])
        for piece in scores
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    merges.sort(key=lambda one: -one[0])
    return [(left, right) for _, left, right in merges]


def _set_template(model, special: Mapping[str, int], single: Sequence[str], pair: Sequence[str]) -> None:
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
