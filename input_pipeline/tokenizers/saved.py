"""A tokenizer as it lies in a folder: its file, and beside it what it was made from."""

from collections.abc import Mapping
from pathlib import Path

from input_pipeline.away import persistently
from input_pipeline.errors import DataError
from input_pipeline.files import checksum, read_json
from input_pipeline.remote import local
from input_pipeline.tokenizers import counted as counted_tokenizer
from input_pipeline.tokenizers import huggingface as huggingface_tokenizer
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer
from input_pipeline.tokenizers import subwords
from input_pipeline.tokenizers.base import Bytes, Tokenizer
from input_pipeline.tokenizers.extended import extended
from input_pipeline.tokenizers.names import spelled

MADE = "made.json"  # what the tokenizer was made from; written last
# Its entries that are no settings: CRC-32 of the tokenizer's file; and, where that was taken from the folder of
# another run's tokenizer, what is needed of what it was made from there.
CHECKSUM, BASE = "checksum", "base"
ROLES = "roles"  # a third: tokens of a ready file by what they are for, where settings beside it said so
MOST_SENTINELS = 2**16  # end of the range in configs/common.py
KINDS = ("sentencepiece", "wordpiece", "bytes", "symbols", "words", "huggingface")
KINDS += ("gpt", "xlm_roberta", "camembert", "ctrl", "xlm")  # files that are read as those models' classes do
FILES = {
    "sentencepiece": "sentencepiece.model",
    "wordpiece": "wordpiece.json",
    "symbols": "symbols.json",
    "words": "words.json",
    "huggingface": "tokenizer.json",
    "gpt": "tokenizer.json",
    "xlm_roberta": "tokenizer.json",
    "camembert": "tokenizer.json",
    "ctrl": "subwords.json",
    "xlm": "subwords.json",
}
LOAD = {
    "sentencepiece": sentencepiece_tokenizer.load,
    "wordpiece": huggingface_tokenizer.load,
    "symbols": counted_tokenizer.load_symbols,
    "words": counted_tokenizer.load_words,
    "huggingface": huggingface_tokenizer.load,
    "gpt": huggingface_tokenizer.load,
    "xlm_roberta": huggingface_tokenizer.load,
    "camembert": huggingface_tokenizer.load,
    "ctrl": subwords.load,
    "xlm": subwords.load,
}


def open_folder(folder: Path) -> Tokenizer:
    """The tokenizer saved in `folder`."""
    return opened(folder, made(folder))


def opened(folder: Path, made: Mapping) -> Tokenizer:
    """The tokenizer whose file lies in `folder`, as it is `made`."""
    return completed(Bytes() if made["kind"] == "bytes" else own(whole(folder, made), made), made)


def flags(folder: Path) -> str:
    """The flags that give a run the tokenizer that another has in `folder`."""
    was = made(folder)
    of_kind = f"path={folder}" if was["kind"] != "bytes" else f"sentinels={was.get('sentinels', 0)}"
    return f"--config.tokenizer.kind={was['kind']} --config.tokenizer.{of_kind}"


def added(folder: Path) -> list[str]:
    """Names of the ids that a tokenizer has on top of its file's, in their order: the first sentinel comes last."""
    settings = [made(folder)]
    while BASE in settings[-1]:
        settings.append(settings[-1][BASE])
    first = settings[-1]
    tokenizer = Bytes() if first["kind"] == "bytes" else load(whole(folder, first), first)
    names = []
    for one in reversed(settings):
        special, before, tokenizer = one.get("special", []), tokenizer.vocab_size, completed(tokenizer, one)
        more = tokenizer.vocab_size - before - len(special)
        names += [spelled(name) for name in special] + [f"<extra_id_{number}>" for number in reversed(range(more))]
    return names


def whole(folder: Path, made: Mapping) -> Path:
    """The file of a tokenizer, on this machine; DataError where it is missing or damaged."""
    path = folder / FILES[made["kind"]]
    fault = "" if persistently(path.is_file) else "is missing"
    if not fault and CHECKSUM in made and made[CHECKSUM] != persistently(lambda: checksum(path)):
        fault = "has other bytes than were written"
    if fault:
        raise DataError(f"{path} {fault}; restore it, or delete {folder} and run prepare again")
    return local(path)


def made(folder: Path) -> dict:
    """What the tokenizer of `folder` was made from."""
    try:
        made = read_json(folder / MADE)
    except ValueError:
        made = None
    if _sound(made):
        return made
    raise DataError(f"{folder / MADE} is damaged; restore it, or delete {folder} and run prepare again")


def _sound(made: object) -> bool:
    """Whether what was read is what a tokenizer was made from, as far as opening it needs that."""
    if not isinstance(made, dict) or made.get("kind") not in KINDS:
        return False
    sentinels, special, unknown = made.get("sentinels", 0), made.get("special", []), made.get("unknown", "")
    roles = made.get(ROLES, {})
    return (
        type(sentinels) is int
        and 0 <= sentinels < MOST_SENTINELS
        and isinstance(special, list)
        and all(isinstance(name, str) for name in (*special, unknown))
        and isinstance(roles, dict)
        and all(isinstance(token, str) for token in roles.values())
        and (BASE not in made or _sound(made[BASE]))
    )


def load(path: Path, settings: Mapping) -> Tokenizer:
    said = {name: settings[name] for name in ("unknown", ROLES) if name in settings}
    return LOAD[settings["kind"]](path, **said)


def own(path: Path, made: Mapping) -> Tokenizer:
    """The tokenizer of the file `path`, with the ids that it had where it was taken from."""
    return completed(own(path, made[BASE]), made[BASE]) if BASE in made else load(path, made)


def named(settings: Mapping) -> str:
    """A tokenizer that is not made here, as a message names it."""
    return f"tokenizer.path = '{settings['path']}'" if settings["path"] else "the other run's tokenizer"


def completed(own: Tokenizer, settings: Mapping) -> Tokenizer:
    """The tokenizer with the ids that it has not itself."""
    sentinels = settings.get("sentinels", 0)
    if sentinels and own.sentinels:
        if sentinels != len(own.sentinels):
            raise DataError(
                f"tokenizer.sentinels = {sentinels}, but {named(settings)} has {len(own.sentinels)} of its own; set "
                "--config.tokenizer.sentinels=0"
            )
        sentinels = 0
    return extended(own, settings.get("special", ()), sentinels)
