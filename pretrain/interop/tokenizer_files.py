"""Tokenizer files of a Hugging Face folder: choosing and checking them on import, writing them on export."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from input_pipeline.io import read_json, read_object
from input_pipeline.tokenizers import export, huggingface, sentencepiece, wordpiece
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.base import Tokenizer, is_code, special_ids
from input_pipeline.tokenizers.settings import KINDS
from pretrain import workdir
from pretrain.errors import UserError
from pretrain.interop.family import Family

JSON, SETTINGS = "tokenizer.json", "tokenizer_config.json"
OLDER_SETTINGS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"  # {token: id}, next to an older vocabulary
FILES = {
    "huggingface": (JSON,),
    "wordpiece": (JSON, "vocab.txt"),
    "sentencepiece": ("spiece.model", "tokenizer.model"),  # T5's; Llama's and an export's
} | {name: (kind.ready,) for name, kind in KINDS.items() if kind.ready}
CLASSES = {"ctrl": "CTRLTokenizer", "xlm": "XLMTokenizer"}  # the only readers of these kinds
# Templates of a text that Transformers' class for SentencePiece has.
PATTERNS = {(): "none", (("$A", "end"),): "eos"}
STARTING = (("start", "$A"), ("start", "$A", "start", "$B"))
SENTINELS = 100  # of T5's tokenizers by default
# BertTokenizer's settings and defaults; `strip_accents` follows `do_lower_case`.
BERT_SETTINGS = {
    "do_lower_case": True,
    "strip_accents": True,
    "tokenize_chinese_chars": True,
    "clean_text": True,
    "do_basic_tokenize": True,
    "never_split": [],
    "word_tokenizer_type": "basic",  # BertJapaneseTokenizer's, as the next
    "subword_tokenizer_type": "wordpiece",
}
# Classes that read a tokenizer.json as it is; all others let their settings override it.
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
# Tokens that the classes add by themselves.
USUAL_TOKENS = re.compile("(\u2581?<extra_id_[0-9]+>|<mask>|<pad>|</?s>|<unk>|(<unk>|</?s>)NOTUSED)")


def section(folder: Path, kinds: tuple[str, ...], prepared: bool = False) -> dict:
    """The `tokenizer` section for the folder's tokenizer, of the first of `kinds` that has a file.

    prepared: texts are split into words as XLM's. Errors: UserError for a missing tokenizer, for an XLM without
    `prepared`, and for settings that change what the file says.
    """
    settings = read_settings(folder)
    for kind in kinds:
        for name in FILES[kind]:
            path = folder / name
            if not path.is_file() or (
                kind == "wordpiece" and name == JSON and huggingface.kind_of(read_object(path, "model")) != "WordPiece"
            ):
                continue
            if kind == "xlm" and not prepared:  # XLM's class runs Moses' scripts first, which are not here
                raise UserError(f"{path}: needs text prepared by XLM's tools. Import with --prepared.")
            check_settings(kind, path, settings)
            fields = {"kind": kind, "path": str(path), "sentinels": 0}
            if kind == "sentencepiece":
                count = settings.get("extra_ids")
                fields["sentinels"] = SENTINELS * (name == "spiece.model") if count is None else count
            if kind == "wordpiece" and name == JSON:
                fields["cased"] = not wordpiece.lower_cases(read_object(path).get("normalizer"))
            elif kind == "wordpiece":
                fields["cased"] = not lower_cases(settings)
            return fields
    names = ", ".join(dict.fromkeys(name for kind in kinds for name in FILES[kind]))
    raise UserError(f"{folder}: no tokenizer ({names}). Save it there: AutoTokenizer.save_pretrained(FOLDER).")


def check_settings(kind: str, path: Path, settings: Mapping) -> None:
    """Raises UserError if settings or added tokens make the class read text otherwise than `path` alone says."""
    folder, is_json = path.parent, path.name == JSON
    content = read_object(path, "model") if is_json else {}
    class_name = settings.get("tokenizer_class") or read_settings(folder, workdir.CONFIG).get("tokenizer_class")
    steps: dict[str, object] = {}
    if is_json and class_name not in GENERIC_CLASSES:
        steps = _steps(content)
    elif kind == "wordpiece" and not is_json:
        steps = BERT_SETTINGS | dict.fromkeys(("do_lower_case", "strip_accents"), lower_cases(settings))
    elif kind == "sentencepiece":
        steps = {"add_prefix_space": sentencepiece.read_proto(path).normalizer_spec.add_dummy_prefix}
    changes = [f"{name}={settings[name]}" for name, value in steps.items() if settings.get(name) not in (None, value)]
    tokens = _added_tokens(folder, settings)
    if kind == "sentencepiece" and (folder / JSON).is_file():
        tokens |= {token for _, token in added(folder / JSON)}
    # A token with an id beyond the vocabulary would be split into pieces here.
    pieces = _pieces(content) if is_json else _piece_names(path)
    changes += [f"token {token}" for token in sorted(tokens - pieces) if not USUAL_TOKENS.fullmatch(token)]
    if changes:
        raise UserError(
            f"{folder}: {changes[0]} is not in {path.name}. Make one {JSON} with Transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )


def lower_cases(settings: Mapping) -> bool:
    """Whether BERT's classes lower-case text; they do by default."""
    return settings.get("do_lower_case") is not False


def _steps(content: Mapping) -> dict[str, object]:
    """The settings that a tokenizer.json implies, of those that classes override."""
    normalizer, pre_tokenizer = content.get("normalizer") or {}, content.get("pre_tokenizer") or {}
    lower, strip = normalizer.get("lowercase"), normalizer.get("strip_accents")
    steps = {
        "do_lower_case": lower,
        "strip_accents": lower if strip is None else strip,
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars"),
        "clean_text": normalizer.get("clean_text"),
        "add_prefix_space": pre_tokenizer.get("add_prefix_space"),
        "use_regex": pre_tokenizer.get("use_regex"),
    }
    return {name: value for name, value in steps.items() if value is not None}


def _added_tokens(folder: Path, settings: Mapping) -> set[str]:
    """Tokens listed next to a vocabulary that rows can contain.

    Special ones count only if they have a role: text here never becomes one. Padding is in no row.
    """
    plain, special, with_role = {*read_settings(folder, ADDED_TOKENS)}, set(), set()
    for content in (read_settings(folder, OLDER_SETTINGS), settings):
        with_role |= _tokens(x for key, x in content.items() if key.endswith("_token") and key != "pad_token")
        entries = content.get("added_tokens_decoder", {}).values()
        plain |= _tokens(entries)
        special |= _tokens([x for x in entries if isinstance(x, dict) and x.get("special")])
        special |= _tokens([content.get("pad_token")])
        for key in ("additional_special_tokens", "extra_special_tokens"):
            several = content.get(key) or ()
            special |= _tokens(several.values() if isinstance(several, dict) else several)
    return plain - special | with_role


def _tokens(values: Iterable) -> set[str]:
    return {token for token in map(token_of, values) if isinstance(token, str)}  # `add_bos_token` is none


def token_of(value) -> str | None:
    """The token of a setting; older files have an object around it."""
    return value.get("content") if isinstance(value, dict) else value


def _pieces(content: Mapping) -> set[str]:
    """Pieces and added tokens of a tokenizer.json."""
    vocabulary = content["model"]["vocab"]  # a list of (piece, score) in unigram models
    pieces = vocabulary if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
    return {*pieces, *(token["content"] for token in content.get("added_tokens", ()))}


def _piece_names(path: Path) -> set[str]:
    """The pieces in a vocabulary that is no tokenizer.json."""
    if path.suffix == ".model":
        return {piece.piece for piece in sentencepiece.read_proto(path).pieces}
    if path.suffix == ".json":
        return set(read_json(path))
    return {line.rstrip("\r") for line in path.read_text(encoding="utf-8").split("\n")}


def read_settings(folder: Path, name: str = SETTINGS) -> dict:
    """A JSON file of settings; empty without one."""
    return read_object(folder / name) if (folder / name).is_file() else {}


def added(path: Path) -> list[tuple[int, str]]:
    """(id, token) of a tokenizer.json's added tokens."""
    return [(token["id"], token["content"]) for token in read_object(path).get("added_tokens", ())]


def roles(folder: Path, section: Mapping, family: Family, given: Mapping) -> dict[str, str]:
    """{special id: token} of a tokenizer.json or a SentencePiece model, by the settings next to it.

    If neither they nor usual names tell, by `given`, the config.json; "unknown" is in the file itself, as are those of
    a SentencePiece model, but for the start.
    """
    path = Path(section["path"])
    settings = read_settings(folder, OLDER_SETTINGS) | read_settings(folder)
    if section["kind"] == "huggingface":
        tokens = dict(added(path))
        usual = special_ids({token: i for i, token in tokens.items()}.get)
    elif section["kind"] == "sentencepiece":
        proto, usual, _ = sentencepiece.read_pieces(path)
        tokens = {i: piece.piece for i, piece in enumerate(proto.pieces) if piece.type == sentencepiece.PIECE.CONTROL}
    else:
        return {}
    # Tokens that two roles share.
    shared = (token_of(settings.get("unk_token")), token_of(settings.get("eos_token")))
    by_role: dict[str, str] = {}
    for key, name in family.special.items():
        i = given.get(f"{key}_id")  # a list where several ids end a text
        known = isinstance(i, int) and name not in usual
        token = token_of(settings.get(key)) or (tokens.get(i) if known else None)
        # GPT-2's users often pad with the end token; rows here keep the two apart.
        if token and name != "unknown" and not (name == "pad" and token in shared):
            by_role.setdefault(name, token)
    if section["kind"] == "sentencepiece":
        if "start" in family.special.values():
            by_role.setdefault("start", proto.trainer_spec.bos_piece)
        theirs = {tokens.get(usual.get(name)) for name in by_role}
        return {name: token for name, token in by_role.items() if token in {*tokens.values()} - theirs}
    return by_role


def frames(folder: Path, section: Mapping, special: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Special tokens that a folder's tokenizer puts around one text and around two, as `tokenizer.single` and `pair`.

    Errors: UserError for a token without a role.
    """
    if section["kind"] != "huggingface":
        settings = read_settings(folder, SETTINGS)
        start = ("start",) * bool(
            settings.get("add_bos_token", section["kind"] == "sentencepiece" and "start" in special)
        )
        end = ("end",) * bool(settings.get("add_eos_token"))
        return (*start, "$A", *end), (*start, "$A", *end, *start, "$B", *end)
    names, (_, model) = {i: name for name, i in special.items()}, huggingface.read(Path(section["path"]))

    def parts(*texts: str) -> tuple[str, ...]:
        encoded = model.encode(*texts)
        found = []
        for i, text in zip(encoded.ids, encoded.sequence_ids, strict=True):
            if text is None and i not in names:
                raise UserError(f"{folder}: {JSON} puts {model.id_to_token(i)} around texts, which has no role.")
            found.append(names[i] if text is None else export.TEXTS[text])
        return tuple(name for place, name in enumerate(found) if name not in export.TEXTS or name not in found[:place])

    return parts("a"), parts("a", "b")


def codes(section: Mapping) -> tuple[str, ...]:
    """Language codes of a tokenizer.json, in the order of their ids."""
    if section["kind"] != "huggingface":
        return ()
    return tuple(token for _, token in sorted(added(Path(section["path"]))) if is_code(token))


def with_language(source: Path, special: Mapping[str, int], family: Family) -> dict[str, int]:
    """The special ids of the tokenizer folder `source`, with `language` as `write` would add it."""
    if not any(map(is_code, special)):
        return dict(special)
    return {**special, **_language(export.tokenizer_json(source, *family.template), special)}


def _language(model, special: Mapping[str, int]) -> dict[str, int]:
    """The language code that a tokenizer.json puts behind texts, else its first."""
    ids = sorted(i for name, i in special.items() if is_code(name))
    behind = [i for i in model.encode("").ids if i in ids]
    return {export.LANGUAGE: (behind or ids)[0]} if ids else {}


def write(
    source: Path, tokenizer: Tokenizer, folder: Path, family: Family, context: int, framed: bool = False
) -> dict[str, int]:
    """Writes the tokenizer folder `source`, opened as `tokenizer`, for AutoTokenizer; returns its special ids.

    `context` is the longest text in tokens. framed: texts get the family's template, whatever `source` adds. `language`
    is added for tokenizers with language codes. A SentencePiece model that rewrites text stays a model file, as do
    CTRL's and XLM's files; the rest is a tokenizer.json. Errors: UserError or DataError if the family's classes cannot
    read it.
    """
    settings = {
        "model_input_names": list(family.inputs),
        "model_max_length": context,
        "padding_side": family.padding_side,
        "clean_up_tokenization_spaces": False,
    }
    special, kind = dict(tokenizer.special), tokenizer_store.read_settings(source)["kind"]
    if "end" in special:  # here texts begin with the end token, unless the tokenizer has its own for that
        special.setdefault("start", special["end"])
    if kind in ("sentencepiece", "bytes") and tokenizer.byte_lengths is not None:
        # Tokenizers trained here may lack padding: the unknown token pads, which no text contains, else the end.
        special.setdefault("pad", special.get("unknown", special["end"]))
    ids = {key: special[name] for key, name in family.special.items() if name in special}
    if model := export.sentencepiece_model(source):
        content, tokens = model
        pattern = PATTERNS.get(family.template[:1])
        if pattern is None:
            raise UserError(
                f"{source}: {family.model_type} has no class for a SentencePiece model that rewrites text. "
                "Use another tokenizer."
            )
        workdir.write(folder / FILES["sentencepiece"][-1], content)
        options = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
        settings |= {"tokenizer_class": "SentencePieceBackend", "special_tokens_pattern": pattern}
        settings |= {key: tokens[i] for key, i in ids.items()}
        settings["additional_special_tokens"] = [token for i, token in tokens.items() if i not in ids.values()]
        settings["added_tokens_decoder"] = {i: {"content": token} | options for i, token in tokens.items()}
        settings["extra_ids"] = len(tokenizer_store.added_tokens(source))
    elif kind in CLASSES:
        for name, content in export.class_files(source).items():
            workdir.write(folder / name, content)
        settings |= {"tokenizer_class": CLASSES[kind]}
    else:
        # A JSON file says itself what comes before a text; a model file of Llama does not.
        starts = kind == "sentencepiece" and "start" in tokenizer.special
        model = export.tokenizer_json(source, *(family.template or STARTING * starts), keep=not framed)
        model.save(str(folder / JSON))
        if "pad" in special:
            ids |= {"pad_token": special["pad"]}
        special |= _language(model, special)
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast"} | {
            key: model.id_to_token(i) for key, i in ids.items()
        }
    workdir.write(folder / SETTINGS, json.dumps(settings, indent=2).encode())
    return special
