"""Tokenizers: the files of a folder of Hugging Face's that ours are read from, and those that it reads."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from input_pipeline.files import read_json
from input_pipeline.tokenizers import converted, exported, saved
from input_pipeline.tokenizers.names import is_code, special_ids
from input_pipeline.tokenizers.tokenizer import Tokenizer
from pretrain import workdir
from pretrain.errors import UserError
from pretrain.interop.family import Family

MADE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
OLDER = "special_tokens_map.json"  # which special tokens there are, beside older settings
ADDED = "added_tokens.json"  # tokens and their ids, beside older vocabularies
SENTINELS = 100  # of T5's tokenizers, where their settings do not say how many
FILES = {
    "huggingface": (MADE,),
    "wordpiece": (MADE, "vocab.txt"),
    "sentencepiece": ("spiece.model",),
} | {kind: (name,) for kind, name in converted.FILES.items()}
# Settings by which the classes read text before they cut it into pieces, and what they are where nothing is said.
USUAL_STEPS = {
    "do_lower_case": True,
    "strip_accents": True,  # or what do_lower_case is
    "tokenize_chinese_chars": True,
    "add_prefix_space": False,
    "do_basic_tokenize": True,
    "never_split": [],
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
}
AS_SAID = (
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
    "PreTrainedTokenizer",
    "PythonBackend",
)  # classes that read a tokenizer.json as it is
# Parts of a tokenizer.json in which the other classes put steps of their own; each may be a sequence of one.
PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
LISTS = ("additional_special_tokens", "extra_special_tokens")  # settings that name several tokens
# Tokens that the classes add by themselves.
USUAL = re.compile("(\u2581?<extra_id_[0-9]+>|<mask>|<pad>|</?s>|<unk>|(<unk>|</?s>)NOTUSED)")
CLASSES = {"ctrl": "CTRLTokenizer", "xlm": "XLMTokenizer"}  # which alone read files of these kinds


def section(folder: Path, kinds: tuple[str, ...], prepared: bool = False) -> dict:
    """The keys of a config's `tokenizer` section for the tokenizer of `folder`, of the first of `kinds` that it has.

    `prepared` says that texts are split into words as XLM's are. Errors: UserError where it has none, or XLM's
    and texts are not.
    """
    settings = _settings(folder)
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
                _check_beside(kind, path, settings)
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
    settings = {name: _token(token) for name, token in (_settings(folder, OLDER) | _settings(folder)).items()}
    added = dict(_added(section))
    usual = special_ids({token: i for i, token in added.items()}.get)
    found = {}
    for key, name in family.special.items():
        number = given.get(f"{key}_id")  # some have several of an end
        known = isinstance(number, int) and name not in usual
        token = settings.get(key) or (added.get(number) if known else None)
        shared = name == "pad" and token in (settings.get("unk_token"), settings.get("eos_token"))
        if token and name != "unknown" and not shared:
            found.setdefault(name, token)
    return found


def codes(section: Mapping) -> tuple[str, ...]:
    """The codes of languages that the tokenizer.json of a `tokenizer` section has, in the order of their ids."""
    if section["kind"] != "huggingface":
        return ()
    return tuple(token for _, token in sorted(_added(section)) if is_code(token))


def _added(section: Mapping) -> list[tuple[int, str]]:
    """Ids and tokens that a tokenizer.json has besides its vocabulary. Errors: UserError where it is none."""
    try:
        added = read_json(Path(section["path"])).get("added_tokens", ())
        return [(int(one["id"]), str(one["content"])) for one in added]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{section['path']} is no tokenizer.json of the library tokenizers; fetch it again") from None


def _token(value) -> str | None:
    """The token that settings name, which older ones tell more about."""
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) else None


def _settings(folder: Path, name: str = SETTINGS) -> dict:
    path = folder / name
    with contextlib.suppress(ValueError):
        found = read_json(path) if path.is_file() else {}
        if isinstance(found, dict):
            return found
    raise UserError(f"{path} is not readable JSON of an object; fetch it again")


def _is_wordpiece(path: Path) -> bool:
    if path.suffix != ".json":
        return True
    try:
        return read_json(path)["model"]["type"] == "WordPiece"
    except (ValueError, KeyError, TypeError):
        return False


def _of_kind(kind: str, path: Path, settings: Mapping) -> dict:
    if kind == "sentencepiece":
        return {"sentinels": settings.get("extra_ids", SENTINELS)}
    if kind == "wordpiece":
        lowers = _steps(settings)["do_lower_case"]
        if path.suffix == ".json":
            lowers = bool(_part(read_json(path), "normalizer").get("lowercase", False))
        return {"cased": not lowers, "sentinels": 0}
    return {"sentinels": 0}


def _check_beside(kind: str, path: Path, settings: Mapping) -> None:
    """Raises UserError where what lies beside a tokenizer's file has text read in another way than that says alone."""
    folder = path.parent
    made = _settings(folder, MADE) if path.name == MADE else {}
    said = settings.get("tokenizer_class") or _settings(folder, workdir.CONFIG).get("tokenizer_class")
    taken, own = _steps(settings), {} if said in AS_SAID else _made_steps(made)
    if kind == "wordpiece" and not made:
        own = USUAL_STEPS | dict.fromkeys(("do_lower_case", "strip_accents"), taken["do_lower_case"])
        del own["add_prefix_space"]  # of which it knows nothing
    unlike = [name for name, value in own.items() if taken[name] != value]
    if unlike and unlike[0] not in settings:
        name = unlike[0]
        raise UserError(
            f"{path} has {name} = {json.dumps(own[name])}, and where {SETTINGS} does not say so its class takes "
            f"{json.dumps(taken[name])}; write there what the model was trained with"
        )
    added = _tokens_beside(folder, settings)
    if kind == "sentencepiece" and (beside := folder / MADE).is_file():
        added |= {token for _, token in _added({"path": str(beside)})}
    known = _pieces(made) if made else converted.pieces(path)
    what = [f"{name} = {json.dumps(settings[name])}" for name in unlike if name in settings]
    what += [f"the token {t}" for t in sorted(added - known) if known and not USUAL.fullmatch(t)]
    if not what:
        return
    remedy = "make one tokenizer.json of both there, in Python with transformers: "
    remedy += "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    if kind == "sentencepiece":
        remedy += f", and move {path.name} away"
    if kind in CLASSES:
        remedy = "a model of this kind is read without; take it out there, and text has no such token"
    raise UserError(f"{folder} adds {what[0]} to what {path.name} says; {remedy}")


def _steps(settings: Mapping) -> dict[str, object]:
    """How the classes have text read before it is cut into pieces, by settings that may be left out."""
    told = {name: settings[name] for name in USUAL_STEPS if settings.get(name) is not None}
    return USUAL_STEPS | {"strip_accents": told.get("do_lower_case", True)} | told


def _made_steps(made: Mapping) -> dict[str, object]:
    """The same of a tokenizer.json: of its steps those that the classes put others in the place of."""
    normalizer, before = (_part(made, name) for name in PARTS)
    steps = {}
    if normalizer.get("type") == "BertNormalizer":
        lowers, strips = normalizer.get("lowercase"), normalizer.get("strip_accents")
        steps = {"do_lower_case": lowers, "strip_accents": lowers if strips is None else strips}
        steps["tokenize_chinese_chars"] = normalizer.get("handle_chinese_chars")
    if before.get("type") == "ByteLevel":
        steps["add_prefix_space"] = before.get("add_prefix_space")
    return {name: step for name, step in steps.items() if step is not None}


def _part(made: Mapping, name: str) -> Mapping:
    """A part of a tokenizer.json; an empty one where it is absent, several, or none that can be."""
    part = made.get(name)
    several = part.get(PARTS[name]) if isinstance(part, dict) else None
    part = several[0] if isinstance(several, list) and len(several) == 1 else part
    return part if isinstance(part, dict) else {}


def _tokens_beside(folder: Path, settings: Mapping) -> set[str]:
    """The tokens that lie beside a vocabulary. No text here holds a special one, so that of these only those count that
    have a part in a row; padding has none."""
    plain, special, roles = {*_settings(folder, ADDED)}, set(), set()
    for told in (_settings(folder, OLDER), settings):
        named = {name: value for name, value in told.items() if name.endswith("_token")}
        roles |= _tokens(value for name, value in named.items() if name != "pad_token")
        entries = _values(told.get("added_tokens_decoder"))
        marked = [one for one in entries if isinstance(one, dict) and one.get("special")]
        plain |= _tokens(entries)
        special |= _tokens([*named.values(), *marked, *(one for name in LISTS for one in _values(told.get(name)))])
    return plain - special | roles


def _values(several) -> list:
    """The values of a list or an object of JSON; none of anything else."""
    return [*several.values()] if isinstance(several, dict) else several if isinstance(several, list) else []


def _tokens(values: Iterable) -> set[str]:
    """The tokens that some of the values of settings are."""
    return {*filter(None, map(_token, values))}


def _pieces(made: Mapping) -> set[str]:
    """The tokens of a tokenizer.json; none of one that is not readable, as whoever opens it says."""
    try:
        vocabulary = made["model"]["vocab"]
        own = vocabulary if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
        return {*own, *(one["content"] for one in made["added_tokens"])}
    except (KeyError, TypeError, ValueError):
        return set()


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
    elif (kind := saved.made(source)["kind"]) in CLASSES:
        for name, content in exported.subwords_files(source).items():
            workdir.write(folder / name, content)
        settings |= {"tokenizer_class": CLASSES[kind]}
    else:
        model = exported.tokenizer_json(source, *family.template)
        model.save(str(folder / FILES["huggingface"][0]))
        named = {key: special[name] for key, name in family.special.items() if name in special}
        if "pad" in special:
            named |= {"pad_token": special["pad"]}
        if of_languages := sorted(i for name, i in special.items() if is_code(name)):
            behind = [i for i in model.encode("").ids if i in of_languages]
            special[exported.LANGUAGE] = (behind or of_languages)[0]
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings |= {key: model.id_to_token(i) for key, i in named.items()}
    workdir.write(folder / SETTINGS, json.dumps(settings, indent=2).encode())
    return special
