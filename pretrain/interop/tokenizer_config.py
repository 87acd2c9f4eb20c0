"""What lies beside a tokenizer's file in a folder of Hugging Face's: settings and tokens by which its classes read text
in another way than that file alone says."""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.files import read_json
from input_pipeline.tokenizers import converted
from input_pipeline.tokenizers.huggingface import kind_of
from pretrain import workdir
from pretrain.errors import UserError

MADE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
OLDER = "special_tokens_map.json"  # which special tokens there are, beside older settings
ADDED = "added_tokens.json"  # tokens and their ids, beside older vocabularies
CLASSES = {"ctrl": "CTRLTokenizer", "xlm": "XLMTokenizer"}  # which alone read files of these kinds
# How the classes have text read before they cut it into pieces, where no setting says otherwise: as BERT's do, and as
# those of byte-level pieces.
OF_BERT = {
    "normalizer": "BertNormalizer",
    "pre_tokenizer": "BertPreTokenizer",
    "clean_text": True,
    "do_lower_case": True,
    "strip_accents": True,  # or what do_lower_case is
    "tokenize_chinese_chars": True,
    "do_basic_tokenize": True,
    "never_split": [],
}
OF_BYTES = {"normalizer": None, "pre_tokenizer": "ByteLevel", "add_prefix_space": False, "use_regex": True}
JAPANESE = "BertJapaneseTokenizer"
# Classes that read a tokenizer.json as it is.
AS_SAID = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
# Parts of a tokenizer.json in which the other classes put steps of their own; each may be a sequence.
PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
LISTS = ("additional_special_tokens", "extra_special_tokens")  # settings that name several tokens
# Tokens that the classes add by themselves.
USUAL = re.compile("(\u2581?<extra_id_[0-9]+>|<mask>|<pad>|</?s>|<unk>|(<unk>|</?s>)NOTUSED)")


def check(kind: str, path: Path, settings: Mapping) -> None:
    """Raises UserError where what lies beside a tokenizer's file has text read in another way than that says alone."""
    folder = path.parent
    made = read_settings(folder, MADE) if path.name == MADE else {}
    of_model = read_settings(folder, workdir.CONFIG)
    said = settings.get("tokenizer_class") or of_model.get("tokenizer_class")
    if said == JAPANESE or "word_tokenizer_type" in settings:
        raise UserError(
            f"{folder} has the pieces of {JAPANESE}, which splits and writes words by tools that are not here; such a "
            "model cannot be imported"
        )
    taken = _steps(settings, kind_of_made(path) if made else "WordPiece", of_model)
    own = _made_steps(made) if made and said not in AS_SAID else {}
    if kind == "wordpiece" and not made:
        own = OF_BERT | dict.fromkeys(("do_lower_case", "strip_accents"), lower_cases(settings))
    unlike = [name for name, value in own.items() if name in taken and taken[name] != value]
    if unlike and unlike[0] not in settings:
        name = unlike[0]
        raise UserError(
            f"{path} has {name} = {json.dumps(own[name])}, and where {SETTINGS} does not say so its class takes "
            f"{json.dumps(taken[name])}; write there what the model was trained with, or, if that is what "
            f'{path.name} says, "tokenizer_class": "{AS_SAID[0]}"'
        )
    tokens = _tokens_beside(folder, settings)
    if kind == "sentencepiece" and (other := folder / MADE).is_file():
        tokens |= {token for _, token in added(other)}
    known = _pieces(made) if made else converted.pieces(path)
    what = [f"{name} = {json.dumps(settings[name])}" for name in unlike if name in settings]
    what += [f"the token {t}" for t in sorted(tokens - known) if known and not USUAL.fullmatch(t)]
    if not what:
        return
    remedy = "make one tokenizer.json of both there, in Python with transformers: "
    remedy += "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    if kind == "sentencepiece":
        remedy += f", and move {path.name} away"
    if kind in CLASSES:
        remedy = "a model of this kind is read without; take it out there, and text has no such token"
    raise UserError(f"{folder} adds {what[0]} to what {path.name} says; {remedy}")


def lower_cases(settings: Mapping) -> bool:
    """Whether BERT's classes lower-case text, as settings have it that may say nothing of that."""
    return settings.get("do_lower_case") is not False


def _steps(settings: Mapping, kind: str, of_model: Mapping) -> dict[str, object]:
    """How the class of a tokenizer whose model is of this kind has text read before it is cut into pieces.

    By that and the config.json, `of_model`; nothing where classes differ too much to know it from those.
    """
    of_bert = kind == "WordPiece" or (kind == "BPE" and of_model.get("model_type") == "openai-gpt")
    usual = OF_BERT | {"strip_accents": lower_cases(settings)} if of_bert else OF_BYTES if kind == "BPE" else {}
    return usual | {name: settings[name] for name in usual if settings.get(name) is not None}


def _made_steps(made: Mapping) -> dict[str, object]:
    """How a tokenizer.json has text read, in those of its steps that the classes put others in the place of."""
    normalizer, before = (_part(made, name) for name in PARTS)
    if normalizer is None or before is None:
        return {}
    lowers, strips = normalizer.get("lowercase"), normalizer.get("strip_accents")
    own = {
        "do_lower_case": lowers,
        "strip_accents": lowers if strips is None else strips,
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars"),
        "clean_text": normalizer.get("clean_text"),
        "add_prefix_space": before.get("add_prefix_space"),
        "use_regex": before.get("use_regex"),
    }
    kinds = {"normalizer": normalizer.get("type"), "pre_tokenizer": before.get("type")}
    return kinds | {name: step for name, step in own.items() if step is not None}


def _part(made: Mapping, name: str) -> Mapping | None:
    """A part of a tokenizer.json, or its only step, empty where it has none; None of what is none."""
    found = {} if made.get(name) is None else made[name]
    several = found.get(PARTS[name]) if isinstance(found, dict) else None
    found = several[0] if isinstance(several, list) and len(several) == 1 else found
    return found if isinstance(found, dict) else None


def _tokens_beside(folder: Path, settings: Mapping) -> set[str]:
    """The tokens that lie beside a vocabulary. No text here holds a special one, so that of these only those count that
    have a part in a row; padding has none."""
    plain, special, roles = {*read_settings(folder, ADDED)}, set(), set()
    for told in (read_settings(folder, OLDER), settings):
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
    return {*filter(None, map(token_of, values))}


def _pieces(made: Mapping) -> set[str]:
    """The tokens of a tokenizer.json; none of one that is not readable, as whoever opens it says."""
    try:
        vocabulary = made["model"]["vocab"]
        own = vocabulary if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
        return {*own, *(one["content"] for one in made["added_tokens"])}
    except (KeyError, TypeError, ValueError):
        return set()


def read_settings(folder: Path, name: str = SETTINGS) -> dict:
    """A file of settings beside a tokenizer's; empty where there is none. Errors: UserError where it cannot be read."""
    path = folder / name
    with contextlib.suppress(ValueError):
        found = read_json(path) if path.is_file() else {}
        if isinstance(found, dict):
            return found
    raise UserError(f"{path} is not readable JSON of an object; fetch it again")


def kind_of_made(path: Path) -> str:
    """The kind of a tokenizer.json's model. Errors: UserError where it is none."""
    try:
        return kind_of(read_json(path))
    except DataError:
        raise
    except Exception:  # the library raises nothing more precise
        raise UserError(f"{path} is no tokenizer.json of the library tokenizers; fetch it again") from None


def added(path: Path) -> list[tuple[int, str]]:
    """Ids and tokens that a tokenizer.json has besides its vocabulary. Errors: UserError where it is none."""
    try:
        tokens = read_json(path).get("added_tokens", ())
        return [(int(one["id"]), str(one["content"])) for one in tokens]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no tokenizer.json of the library tokenizers; fetch it again") from None


def token_of(value) -> str | None:
    """The token that settings name, which older ones tell more about."""
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) else None
