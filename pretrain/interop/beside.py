"""What lies beside a tokenizer's file in a folder of Hugging Face's: settings and tokens by which its classes read text
in another way than that file alone says."""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from input_pipeline.files import read_json
from input_pipeline.tokenizers import converted
from pretrain import workdir
from pretrain.errors import UserError

MADE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
OLDER = "special_tokens_map.json"  # which special tokens there are, beside older settings
ADDED = "added_tokens.json"  # tokens and their ids, beside older vocabularies
CLASSES = {"ctrl": "CTRLTokenizer", "xlm": "XLMTokenizer"}  # which alone read files of these kinds
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
# Classes that read a tokenizer.json as it is.
AS_SAID = ("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", "PythonBackend")
# Parts of a tokenizer.json in which the other classes put steps of their own; each may be a sequence of one.
PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
LISTS = ("additional_special_tokens", "extra_special_tokens")  # settings that name several tokens
# Tokens that the classes add by themselves.
USUAL = re.compile("(\u2581?<extra_id_[0-9]+>|<mask>|<pad>|</?s>|<unk>|(<unk>|</?s>)NOTUSED)")


def check(kind: str, path: Path, settings: Mapping) -> None:
    """Raises UserError where what lies beside a tokenizer's file has text read in another way than that says alone."""
    folder = path.parent
    made = read_settings(folder, MADE) if path.name == MADE else {}
    said = settings.get("tokenizer_class") or read_settings(folder, workdir.CONFIG).get("tokenizer_class")
    taken, own = steps(settings), {} if said in AS_SAID else _made_steps(made)
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


def steps(settings: Mapping) -> dict[str, object]:
    """How the classes have text read before it is cut into pieces, by settings that may be left out."""
    told = {name: settings[name] for name in USUAL_STEPS if settings.get(name) is not None}
    return USUAL_STEPS | {"strip_accents": told.get("do_lower_case", True)} | told


def _made_steps(made: Mapping) -> dict[str, object]:
    """The same of a tokenizer.json: of its steps those that the classes put others in the place of."""
    normalizer, before = (part(made, name) for name in PARTS)
    own = {}
    if normalizer.get("type") == "BertNormalizer":
        lowers, strips = normalizer.get("lowercase"), normalizer.get("strip_accents")
        own = {"do_lower_case": lowers, "strip_accents": lowers if strips is None else strips}
        own["tokenize_chinese_chars"] = normalizer.get("handle_chinese_chars")
    if before.get("type") == "ByteLevel":
        own["add_prefix_space"] = before.get("add_prefix_space")
    return {name: step for name, step in own.items() if step is not None}


def part(made: Mapping, name: str) -> Mapping:
    """A part of a tokenizer.json; an empty one where it is absent, several, or none that can be."""
    found = made.get(name)
    several = found.get(PARTS[name]) if isinstance(found, dict) else None
    found = several[0] if isinstance(several, list) and len(several) == 1 else found
    return found if isinstance(found, dict) else {}


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
