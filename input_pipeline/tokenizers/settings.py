"""What the tokenizer of a config's section `tokenizer` depends on, and how many ids it will have."""

from collections.abc import Mapping, Sequence

from input_pipeline.errors import DataError
from input_pipeline.sources.sources import Source
from input_pipeline.tokenizers import converted
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer
from input_pipeline.tokenizers.base import SPECIAL, Bytes
from input_pipeline.tokenizers.saved import KINDS

# Kinds that are made from data.train where there is no tokenizer.path, and bytes: the special ids that each has itself.
MADE_HERE = {
    "sentencepiece": ("end", "unknown"),
    "wordpiece": SPECIAL,
    "bytes": ("end",),
    "symbols": (),
    "words": ("end", "unknown"),
}
PADDING = {"wordpiece": {"pad": 0}}  # the id of padding, of those of them that have one
LEAST = 2  # entries of a vocabulary trained here: an end token and an unknown one
# Settings that a tokenizer trained here depends on, besides the text.
TRAINED = {
    "sentencepiece": ("vocab_size", "algorithm", "pieces"),
    "wordpiece": ("vocab_size", "cased"),
    "words": ("vocab_size",),
}


def asked_for(
    config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float, special: Sequence[str] = ()
) -> dict:
    """What the tokenizer depends on, by config key; and `special`, the ids that it gets besides its own."""
    settings = _own_settings(config, named, holdout)
    if lacking := _lacking(config, special):
        settings["special"] = lacking
    if config["sentinels"]:
        settings["sentinels"] = config["sentinels"]
    return settings


def _own_settings(config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float) -> dict:
    kind = config["kind"]
    if kind not in KINDS:
        raise DataError(f"tokenizer.kind is '{kind}'; choose one of: {', '.join(KINDS)}")
    if config["unknown"] and kind != "huggingface":
        raise DataError(
            f"tokenizer.unknown = '{config['unknown']}' is for tokenizer.kind = huggingface, not {kind}; set "
            "--config.tokenizer.unknown="
        )
    if kind == "bytes":
        return {"kind": kind}
    if config["path"] or kind not in MADE_HERE:
        unknown = {"unknown": config["unknown"]} if config["unknown"] else {}
        cased = {"cased": config["cased"]} if kind == "wordpiece" else {}
        return {"kind": kind, "path": config["path"]} | unknown | cased
    settings = {"kind": kind, "path": "", "data.holdout": holdout}
    if kind == "symbols":
        return settings | {f"data.{name}": [s.spec for s in found] for name, found in named.items()}
    if config["vocab_size"] < LEAST:
        raise DataError(
            f"tokenizer.vocab_size = {config['vocab_size']} leaves no room for both the end token and what is unknown; "
            f"set it to {LEAST} or more"
        )
    read = {} if kind == "words" else {"train_bytes": config["train_bytes"]}  # words are counted in all of the text
    trained = {name: config[name] for name in TRAINED[kind]} | read
    if kind == "sentencepiece":
        sentencepiece_tokenizer.check(config["algorithm"], config["pieces"])
    return settings | trained | {"data.train": [source.spec for source in named["train"]]}


def known_size(config: Mapping, special: Sequence[str]) -> int | None:
    """How many ids the tokenizer of `config` will have, at most, for a task that needs `special`.

    None where only its file or the text tells.
    """
    if not is_made_here(config) or config["kind"] == "symbols":
        return None
    own = Bytes().vocab_size if config["kind"] == "bytes" else config["vocab_size"]
    return own + len(_lacking(config, special)) + config["sentinels"]


def known_padding(config: Mapping, taken: bool) -> Mapping[str, int] | None:
    """The special id of padding, by its name, of the tokenizer that `config` will have; empty where it has none.

    None where only its file tells, or, where another run's is `taken`, that one.
    """
    if not is_made_here(config, taken):
        return None
    return PADDING.get(config["kind"], {})


def _lacking(config: Mapping, special: Sequence[str]) -> list[str]:
    """The special ids that a tokenizer which is made here gets besides its own."""
    return [name for name in special if name not in MADE_HERE[config["kind"]]] if is_made_here(config) else []


def is_made_here(config: Mapping, taken: bool = False) -> bool:
    """Whether the tokenizer comes from no file, and no other run's is `taken`: bytes never do."""
    return config["kind"] == "bytes" or (config["kind"] in MADE_HERE and not (config["path"] or taken))


def check_settings(config: Mapping, taken: bool = False) -> None:
    """Raises DataError for settings of which no tokenizer can be made.

    `taken` says that there is another run's, or the folder's own, where `config` names none.
    """
    asked_for(config, {"train": ()}, 0.0)
    if not taken:
        check_named(config)


def check_named(config: Mapping) -> None:
    """Raises DataError where a kind of which none is made here has no file."""
    kind = config["kind"]
    if not config["path"] and kind not in MADE_HERE:
        raise DataError(
            f"tokenizer.kind = {kind} trains no tokenizer; set tokenizer.path to its file, such as "
            f"{converted.FILES.get(kind, 'tokenizer.json')}, or train one: {trained_instead(config)}"
        )


def trained_instead(config: Mapping) -> str:
    """The flags with which a tokenizer is trained where one of a kind that is not was to be read."""
    return "--config.tokenizer.kind=sentencepiece" + " --config.tokenizer.unknown=" * bool(config["unknown"])
