"""Tokenizers: the files of a folder of Hugging Face's that ours are read from, and those that it reads."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from input_pipeline.files import read_json
from input_pipeline.tokenizers import converted, exported, saved, wordpiece
from input_pipeline.tokenizers.base import Tokenizer
from input_pipeline.tokenizers.names import is_code, special_ids
from pretrain import workdir
from pretrain.errors import UserError
from pretrain.interop import tokenizer_config
from pretrain.interop.family import Family

SENTINELS = 100  # of T5's tokenizers, where their settings do not say how many
FILES = {
    "huggingface": (tokenizer_config.MADE,),
    "wordpiece": (tokenizer_config.MADE, "vocab.txt"),
    "sentencepiece": ("spiece.model",),
} | {kind: (name,) for kind, name in converted.FILES.items()}


def section(folder: Path, kinds: tuple[str, ...], prepared: bool = False) -> dict:
    """The keys of a config's `tokenizer` section for the tokenizer of `folder`, of the first of `kinds` that it has.

    `prepared` says that texts are split into words as XLM's are. Errors: UserError where it has none, or XLM's
    and texts are not.
    """
    settings = tokenizer_config.read_settings(folder)
    for kind in kinds:
        for name in FILES[kind]:
            path = folder / name
            if path.is_file() and (kind != "wordpiece" or _is_wordpiece(path)):
                if kind == "xlm" and not prepared:
                    raise UserError(
                        f"{path} has pieces of words that Moses' scripts and those of each language split and clean, "
                        "which are not here; prepare all text with XLM's tools, and import with --prepared, by which "
                        "words are what stands between white space"
                    )
                tokenizer_config.check(kind, path, settings)
                return {"kind": kind, "path": str(path)} | _of_kind(kind, path, settings)
    names = ", ".join(dict.fromkeys(name for kind in kinds for name in FILES[kind]))
    raise UserError(
        f"{folder} holds no tokenizer (none of {names}); put the model's there, in Python with transformers: "
        "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
    )


def roles(folder: Path, section: Mapping, family: Family, given: Mapping) -> dict[str, str]:
    """{name of a special id: token} as the settings beside a tokenizer.json have them, and where they and the usual
    names say nothing `given`, the config.json; `section` is the tokenizer's. The file itself says what is unknown.
    """
    if section["kind"] != "huggingface":
        return {}
    settings = tokenizer_config.read_settings(folder, tokenizer_config.OLDER) | tokenizer_config.read_settings(folder)
    added = dict(tokenizer_config.added(Path(section["path"])))
    usual = special_ids({token: i for i, token in added.items()}.get)
    found = {}
    for key, name in family.special.items():
        number = given.get(f"{key}_id")  # some have several of an end
        known = isinstance(number, int) and name not in usual
        token = tokenizer_config.token_of(settings.get(key)) or (added.get(number) if known else None)
        shared = name == "pad" and token in map(
            tokenizer_config.token_of, map(settings.get, ("unk_token", "eos_token"))
        )
        if token and name != "unknown" and not shared:
            found.setdefault(name, token)
    return found


def codes(section: Mapping) -> tuple[str, ...]:
    """The codes of languages that the tokenizer.json of a `tokenizer` section has, in the order of their ids."""
    if section["kind"] != "huggingface":
        return ()
    return tuple(token for _, token in sorted(tokenizer_config.added(Path(section["path"]))) if is_code(token))


def with_language(source: Path, special: Mapping[str, int], family: Family) -> dict[str, int]:
    """The special ids of the tokenizer of the folder `source`, and `language` where it has codes, as `write` has it."""
    if not any(map(is_code, special)):
        return dict(special)
    return {**special, **_language(exported.tokenizer_json(source, *family.template), special)}


def _language(model, special: Mapping[str, int]) -> dict[str, int]:
    """The code of a language that a tokenizer.json puts behind texts, or else the first that it has."""
    codes = sorted(i for name, i in special.items() if is_code(name))
    behind = [i for i in model.encode("").ids if i in codes]
    return {exported.LANGUAGE: (behind or codes)[0]} if codes else {}


def _is_wordpiece(path: Path) -> bool:
    return path.suffix != ".json" or tokenizer_config.kind_of_made(path) == "WordPiece"


def _of_kind(kind: str, path: Path, settings: Mapping) -> dict:
    if kind == "sentencepiece":
        return {"sentinels": _sentinels(settings, path.with_name(tokenizer_config.SETTINGS))}
    if kind == "wordpiece":
        lowers = tokenizer_config.lower_cases(settings)
        if path.suffix == ".json":
            lowers = wordpiece.lower_cases(read_json(path).get("normalizer"))
        return {"cased": not lowers, "sentinels": 0}
    return {"sentinels": 0}


def _sentinels(settings: Mapping, file: Path) -> int:
    count = settings.get("extra_ids")
    if count is None:
        return SENTINELS
    if type(count) is not int or count < 0:
        raise UserError(f"{file}: extra_ids = {count!r} is no number of sentinels; fetch it again")
    return count


def write(source: Path, tokenizer: Tokenizer, folder: Path, family: Family, context: int) -> dict[str, int]:
    """Writes the tokenizer of the folder `source`, opened as `tokenizer`, into `folder`, for AutoTokenizer.

    `context` is the longest text of the model, in tokens. Returns the special ids that it has there: `pad` of one made
    here without it is what is unknown, which no text holds, or else the end; `language` the
    code that texts get, or the first.

    That is a tokenizer.json, and settings that name its special tokens; of a SentencePiece model that rewrites text the
    model file itself, which T5's class alone reads, and of CTRL's and XLM's files these again. Errors: UserError or
    DataError where none can be.
    """
    settings = {
        "model_input_names": list(family.inputs),
        "model_max_length": context,
        "padding_side": family.pads,
        "clean_up_tokenization_spaces": False,
    }
    special = dict(tokenizer.special)
    if saved.made(source)["kind"] in ("sentencepiece", "bytes") and tokenizer.byte_lengths is not None:
        special.setdefault("pad", special.get("unknown", special["end"]))
    if file := exported.sentencepiece_file(source):
        if "sentencepiece" not in family.tokenizers:
            raise UserError(
                f"{source} holds a SentencePiece model that rewrites text, and no class that reads {family.model_type} "
                "does so alike; it can be exported with T5 and mT5 alone"
            )
        shutil.copyfile(file, folder / FILES["sentencepiece"][0])
        settings |= {"tokenizer_class": "T5Tokenizer", "extra_ids": len(saved.added(source))}
    elif (kind := saved.made(source)["kind"]) in tokenizer_config.CLASSES:
        for name, content in exported.subwords_files(source).items():
            workdir.write(folder / name, content)
        settings |= {"tokenizer_class": tokenizer_config.CLASSES[kind]}
    else:
        model = exported.tokenizer_json(source, *family.template)
        model.save(str(folder / FILES["huggingface"][0]))
        named = {key: special[name] for key, name in family.special.items() if name in special}
        if "pad" in special:
            named |= {"pad_token": special["pad"]}
        special |= _language(model, special)
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings |= {key: model.id_to_token(i) for key, i in named.items()}
    workdir.write(folder / tokenizer_config.SETTINGS, json.dumps(settings, indent=2).encode())
    return special
