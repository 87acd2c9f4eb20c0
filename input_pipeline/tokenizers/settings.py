"""Settings that a tokenizer depends on, from the config's section `tokenizer`, and its number of ids."""

from collections.abc import Mapping, Sequence

from input_pipeline.errors import DataError
from input_pipeline.sources.base import Source
from input_pipeline.tokenizers import sentencepiece
from input_pipeline.tokenizers.base import SPECIAL_TOKENS, Bytes

# Kinds that need no file, because they are trained on data.train or are bytes: the special ids that each has itself.
TRAINABLE = {
    "sentencepiece": ("end", "unknown"),
    "wordpiece": tuple(SPECIAL_TOKENS),
    "bytes": ("end",),
    "symbols": (),
    "words": ("end", "unknown"),
}
# Kinds that read the files of one model's class, and the file of each.
CLASS_FILES = {
    "gpt": "vocab.json",
    "xlm_roberta": "sentencepiece.bpe.model",
    "camembert": "sentencepiece.bpe.model",
    "ctrl": "vocab.json",
    "xlm": "vocab.json",
}
KINDS = ("sentencepiece", "wordpiece", "bytes", "symbols", "words", "huggingface", *CLASS_FILES)
PADDING = {"wordpiece": {"pad": 0}}  # padding ids of trained kinds that have one
LEAST = 2  # entries of a trained vocabulary: an end token and an unknown one
# Settings besides the text on which a trained tokenizer depends.
TRAINED = {
    "sentencepiece": ("vocab_size", "algorithm", "pieces"),
    "wordpiece": ("vocab_size", "cased"),
    "words": ("vocab_size",),
}


def required(
    config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float, special: Sequence[str] = ()
) -> dict:
    """Settings that the tokenizer depends on, by config key; `special`: the ids to add to its own."""
    settings = _own_settings(config, named, holdout)
    if lacking := _lacking(config, special):
        settings["special"] = lacking
    if config["sentinels"]:
        settings["sentinels"] = config["sentinels"]
    return settings


def _own_settings(config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float) -> dict:
    kind = config["kind"]
    if kind not in KINDS:
        raise DataError(f"tokenizer.kind={kind} is unknown. Choose one of: {', '.join(KINDS)}.")
    if config["unknown"] and kind != "huggingface":
        raise DataError(
            f"tokenizer.unknown={config['unknown']} needs tokenizer.kind=huggingface, not {kind}. Set "
            "--config.tokenizer.unknown=."
        )
    if kind == "bytes":
        return {"kind": kind}
    if config["path"] or kind not in TRAINABLE:
        unknown = {"unknown": config["unknown"]} if config["unknown"] else {}
        cased = {"cased": config["cased"]} if kind == "wordpiece" else {}
        return {"kind": kind, "path": config["path"]} | unknown | cased
    settings = {"kind": kind, "path": "", "data.holdout": holdout}
    if kind == "symbols":
        return settings | {f"data.{name}": [s.spec for s in sources] for name, sources in named.items()}
    if config["vocab_size"] < LEAST:
        raise DataError(f"tokenizer.vocab_size={config['vocab_size']} is too small. Set it to {LEAST} or more.")
    read = {} if kind == "words" else {"train_bytes": config["train_bytes"]}  # words are counted in all of the text
    trained = {name: config[name] for name in TRAINED[kind]} | read
    if kind == "sentencepiece":
        sentencepiece.check(config["algorithm"], config["pieces"])
    return settings | trained | {"data.train": [source.spec for source in named["train"]]}


def known_size(config: Mapping, special: Sequence[str]) -> int | None:
    """The most ids that the tokenizer of `config` will have, for a task that needs `special`.

    None if only its file or the text determines it.
    """
    if not is_made_here(config) or config["kind"] == "symbols":
        return None
    own = Bytes().vocab_size if config["kind"] == "bytes" else config["vocab_size"]
    return own + len(_lacking(config, special)) + config["sentinels"]


def known_padding(config: Mapping, taken: bool) -> Mapping[str, int] | None:
    """The padding id, by name, of the tokenizer that `config` will have; empty if it has none.

    None if only its file determines it, or another run's that is `taken`.
    """
    return PADDING.get(config["kind"], {}) if is_made_here(config, taken) else None


def _lacking(config: Mapping, special: Sequence[str]) -> list[str]:
    """Special ids to add to a tokenizer that is made here."""
    return [name for name in special if name not in TRAINABLE[config["kind"]]] if is_made_here(config) else []


def is_made_here(config: Mapping, taken: bool = False) -> bool:
    """Whether the tokenizer comes from no file, nor from another run if one is `taken`."""
    return config["kind"] == "bytes" or (config["kind"] in TRAINABLE and not (config["path"] or taken))


def check_settings(config: Mapping, taken: bool = False) -> None:
    """Raises DataError for unusable settings. `taken`: another run's tokenizer is used if `config` names none."""
    required(config, {"train": ()}, 0.0)
    if not taken:
        check_named(config)


def check_named(config: Mapping) -> None:
    """Raises DataError for a kind that needs a file without one."""
    kind = config["kind"]
    if not config["path"] and kind not in TRAINABLE:
        file = CLASS_FILES.get(kind, "tokenizer.json")
        raise DataError(
            f"tokenizer.kind={kind} cannot be trained. Set tokenizer.path to its {file}, or {training_flags(config)}."
        )


def training_flags(config: Mapping) -> str:
    """The flags that train a tokenizer instead of reading one of this kind."""
    return "--config.tokenizer.kind=sentencepiece" + " --config.tokenizer.unknown=" * bool(config["unknown"])
