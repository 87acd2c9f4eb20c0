"""Kinds of tokenizers, and the settings that each depends on, from the config's section `tokenizer`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from input_pipeline.errors import DataError
from input_pipeline.sources.base import Source
from input_pipeline.tokenizers import bpe, counts, fairseq, huggingface, sentencepiece, wordpiece
from input_pipeline.tokenizers.base import SPECIAL_TOKENS, Bytes, Tokenizer


class Kind(NamedTuple):
    """A kind of tokenizer.

    file: its name in a run's folder; bytes need none. open: opens that file.
    ready: name of the user's file, for kinds that read the files of one model's class. read: turns it, given the
    settings, into the content of `file`; None: `file` is a copy.
    own: special ids of a tokenizer that needs no file; None: it needs one. train: (texts, *settings `trained`) ->
    content of `file`. of_all_text: trained on all of the text, not on tokenizer.train_bytes of it.
    """

    file: str
    open: Callable[..., Tokenizer]
    ready: str = ""
    read: Callable[[Path, Mapping], bytes] | None = None
    own: Sequence[str] | None = None
    train: Callable[..., bytes] | None = None
    trained: Sequence[str] = ()
    of_all_text: bool = False

    @property
    def is_tokenizer_json(self) -> bool:
        """Whether `file` is a tokenizer.json."""
        return self.open is huggingface.load


JSON = "tokenizer.json"
KINDS = {
    "sentencepiece": Kind(
        "sentencepiece.model",
        sentencepiece.load,
        own=("end", "unknown"),
        train=sentencepiece.train,
        trained=("vocab_size", "algorithm", "pieces"),
    ),
    "wordpiece": Kind(
        "wordpiece.json",
        huggingface.load,
        read=wordpiece.read,
        own=tuple(SPECIAL_TOKENS),
        train=wordpiece.train,
        trained=("vocab_size", "cased"),
    ),
    "bytes": Kind("", Bytes, own=("end",)),
    "symbols": Kind("symbols.json", counts.Symbols, own=(), train=counts.train_symbols, of_all_text=True),
    "words": Kind(
        "words.json",
        counts.Words,
        own=("end", "unknown"),
        train=counts.train_words,
        trained=("vocab_size",),
        of_all_text=True,
    ),
    "huggingface": Kind(JSON, huggingface.load),
    "gpt": Kind(JSON, huggingface.load, bpe.VOCABULARY, bpe.read),
    "xlm_roberta": Kind(JSON, huggingface.load, fairseq.FILE, fairseq.read),
    "camembert": Kind(JSON, huggingface.load, fairseq.FILE, fairseq.read),
    "ctrl": Kind("subwords.json", bpe.WordBPE, bpe.VOCABULARY, bpe.read),
    "xlm": Kind("subwords.json", bpe.WordBPE, bpe.VOCABULARY, bpe.read),
}
CHOICES = {"kind": KINDS, "algorithm": sentencepiece.ALGORITHMS, "pieces": sentencepiece.PIECES}


def check_settings(config: Mapping, inherited: bool = False) -> None:
    """Raises DataError for unusable settings. `inherited`: another run's tokenizer is used if `config` names none."""
    for name, choices in CHOICES.items():
        if config[name] not in choices:
            raise DataError(f"tokenizer.{name}={config[name]} is unknown. Choose one of: {', '.join(choices)}.")
    name = config["kind"]
    if config["unknown"] and name != "huggingface":
        raise DataError(
            f"tokenizer.unknown={config['unknown']} needs tokenizer.kind=huggingface, not {name}. Set "
            "--config.tokenizer.unknown=."
        )
    if KINDS[name].own is None and not (config["path"] or inherited):
        file = KINDS[name].ready or JSON
        raise DataError(
            f"tokenizer.kind={name} cannot be trained. Set tokenizer.path to its {file}, or {training_flags(config)}."
        )


def required(
    config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float, special: Sequence[str] = ()
) -> dict:
    """Settings that the tokenizer depends on, by config key; `special`: the ids to add to its own."""
    name, kind = config["kind"], KINDS[config["kind"]]
    settings = {"kind": name}
    if (config["path"] and name != "bytes") or kind.own is None:
        settings["path"] = config["path"]
        settings |= {"unknown": config["unknown"]} if config["unknown"] else {}
        settings |= {"cased": config["cased"]} if name == "wordpiece" else {}
    elif kind.train:
        settings |= {"path": "", "data.holdout": holdout} | {key: config[key] for key in kind.trained}
        if not kind.of_all_text:
            settings["train_bytes"] = config["train_bytes"]
        settings |= {f"data.{split}": [s.spec for s in sources] for split, sources in text(name, named).items()}
    settings |= {"special": lacking} if (lacking := _lacking(config, special)) else {}
    return settings | ({"sentinels": config["sentinels"]} if config["sentinels"] else {})


def text(kind: str, named: Mapping[str, Sequence[Source]]) -> Mapping[str, Sequence[Source]]:
    """The sources by split that a tokenizer is trained on: symbols are counted in all, else an id would be missing."""
    return named if kind == "symbols" else {"train": named["train"]}


def known_size(config: Mapping, special: Sequence[str]) -> int | None:
    """The most ids that the tokenizer of `config` will have, for a task that needs `special`.

    None if only its file or the text determines it.
    """
    if not is_made_here(config) or config["kind"] == "symbols":
        return None
    own = Bytes().vocab_size if config["kind"] == "bytes" else config["vocab_size"]
    return own + len(_lacking(config, special)) + config["sentinels"]


def known_padding(config: Mapping, inherited: bool) -> Mapping[str, int] | None:
    """The padding id, by name, of the tokenizer that `config` will have; empty if it has none.

    None if only its file determines it, or another run's that is `inherited`.
    """
    if not is_made_here(config, inherited):
        return None
    return {"pad": 0} if config["kind"] == "wordpiece" else {}  # the first of its special pieces


def is_made_here(config: Mapping, inherited: bool = False) -> bool:
    """Whether the tokenizer comes from no file, nor from another run if one is `inherited`."""
    return config["kind"] == "bytes" or (KINDS[config["kind"]].own is not None and not (config["path"] or inherited))


def _lacking(config: Mapping, special: Sequence[str]) -> list[str]:
    """Special ids to add to a tokenizer that is made here."""
    return [name for name in special if name not in KINDS[config["kind"]].own] if is_made_here(config) else []


def training_flags(config: Mapping) -> str:
    """The flags that train a tokenizer instead of reading one of this kind."""
    return "--config.tokenizer.kind=sentencepiece" + " --config.tokenizer.unknown=" * bool(config["unknown"])
