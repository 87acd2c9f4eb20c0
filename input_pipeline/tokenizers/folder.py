"""The work folder's tokenizer: trained or copied in once, then read from there by every command."""

import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.files import filled, locked, read_json, remove_partial, replaced, write_json, written_under
from input_pipeline.sources.sources import Source
from input_pipeline.tokenizers import counted as counted_tokenizer
from input_pipeline.tokenizers import huggingface as huggingface_tokenizer
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer
from input_pipeline.tokenizers.tokenizer import Bytes, Tokenizer

KINDS = ("sentencepiece", "bytes", "symbols", "words", "huggingface")
TRAINABLE = (
    "sentencepiece",
    "symbols",
    "words",
)  # kinds that are made from data.train where there is no tokenizer.path
MADE = "made.json"  # what the tokenizer was made from; written last
FILES = {
    "sentencepiece": "sentencepiece.model",
    "symbols": "symbols.json",
    "words": "words.json",
    "huggingface": "tokenizer.json",
}
LOAD = {
    "sentencepiece": sentencepiece_tokenizer.load,
    "symbols": counted_tokenizer.load_symbols,
    "words": counted_tokenizer.load_words,
    "huggingface": huggingface_tokenizer.load,
}
LEAST = 2  # entries of a vocabulary trained here: an end token and an unknown one
TRAINED = ("vocab_size", "algorithm", "pieces")  # settings of a tokenizer trained here


def open_folder(folder: Path) -> Tokenizer:
    """The tokenizer saved in `folder`."""
    made = _made(folder)
    kind = made["kind"]
    if kind != "bytes" and not (folder / FILES[kind]).is_file():
        raise DataError(f"{folder / FILES[kind]} is missing; restore it, or delete {folder} and run prepare again")
    return Bytes() if kind == "bytes" else _load(folder / FILES[kind], made)


def _made(folder: Path) -> dict:
    """What the tokenizer of `folder` was made from."""
    try:
        made = read_json(folder / MADE)
        if made["kind"] in KINDS:
            return made
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{folder / MADE} is damaged; restore it, or delete {folder} and run prepare again")


def _load(path: Path, settings: Mapping) -> Tokenizer:
    unknown = [settings["unknown"]] if "unknown" in settings else []
    return LOAD[settings["kind"]](path, *unknown)


def make_folder(
    folder: Path,
    config: Mapping,
    named: Mapping[str, Sequence[Source]],
    holdout: float,
    report: Callable[[str], None],
) -> Tokenizer:
    """Makes the tokenizer that `config` asks for, if `folder` has none, and opens it.

    `named` are the sources of each split; symbols are counted in all of them, all else in what is trained on.

    Several processes may call this at once: one works, the others wait. Errors: DataError if the folder's
    tokenizer was made from other settings.
    """
    settings = _settings(config, named, holdout)
    made = folder / MADE
    if not made.is_file():
        waiting = lambda: report("waiting for the tokenizer")  # noqa: E731
        with written_under(folder, "--workdir"), locked(folder / "lock", waiting), filled(folder):
            if not made.is_file():
                remove_partial(folder)
                _make(folder, config, settings, named, report)
                if "vocab_size" in settings:
                    pieces = _load(folder / FILES[settings["kind"]], settings).vocab_size
                    if pieces < settings["vocab_size"]:
                        report(f"the training text yields {pieces} pieces, not {settings['vocab_size']}")
                write_json(made, settings)
    was = _made(folder)
    for name in {**settings, **was}:
        if settings.get(name) != was.get(name):
            raise DataError(
                f"{folder} holds a tokenizer made with {name} = {was.get(name)}, but the config says "
                f"{settings.get(name)}; set it back, choose another --workdir, or delete that folder"
            )
    return open_folder(folder)


def _settings(config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float) -> dict:
    """What the tokenizer depends on, by config key."""
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
    if not config["path"] and kind not in TRAINABLE:
        raise DataError(
            f"tokenizer.kind = {kind} trains no tokenizer; set tokenizer.path to a tokenizer.json, or train one: "
            + _trained_instead(config)
        )
    if config["path"]:
        unknown = {"unknown": config["unknown"]} if config["unknown"] else {}
        return {"kind": kind, "path": config["path"]} | unknown
    settings = {"kind": kind, "path": "", "data.holdout": holdout}
    if kind == "symbols":
        return settings | {f"data.{name}": [s.spec for s in found] for name, found in named.items()}
    if config["vocab_size"] < LEAST:
        raise DataError(
            f"tokenizer.vocab_size = {config['vocab_size']} leaves no room for both the end token and what is unknown; "
            f"set it to {LEAST} or more"
        )
    trained = ("vocab_size",) if kind == "words" else (*TRAINED, "train_bytes")
    return settings | {name: config[name] for name in trained} | {"data.train": [s.spec for s in named["train"]]}


def _trained_instead(config: Mapping) -> str:
    """The flags with which a tokenizer is trained where one of a kind that is not was to be read."""
    return "--config.tokenizer.kind=sentencepiece" + " --config.tokenizer.unknown=" * bool(config["unknown"])


def check_settings(config: Mapping) -> None:
    """Raises DataError for settings of which no tokenizer can be made."""
    _settings(config, {"train": ()}, 0.0)


def check(folder: Path, config: Mapping) -> None:
    """Raises DataError where the tokenizer's file is missing; one that `folder` holds needs no file any more."""
    kind, path = config["kind"], Path(config["path"]).expanduser()
    if kind == "bytes" or not config["path"] or path.is_file() or (folder / MADE).is_file():
        return
    other = (
        "leave it empty to train one"
        if kind in TRAINABLE
        else f"train one: --config.tokenizer.path= {_trained_instead(config)}"
    )
    raise DataError(
        f"tokenizer.path = '{path}' is no file; correct it, or {other} (docs/data.md, under 'Files that recipes need', "
        "has commands that fetch the tokenizers of recipes)"
    )


def _make(folder: Path, config: Mapping, settings: Mapping, named, report) -> None:
    kind = config["kind"]
    if kind == "bytes":
        return
    with replaced(folder / FILES[kind]) as partial:
        if config["path"]:
            path = Path(config["path"]).expanduser()
            _load(path, settings)  # a file that is no tokenizer is not kept, and is named where the user has it
            shutil.copyfile(path, partial)
            return
        holdout = settings["data.holdout"]
        counted = named.values() if kind == "symbols" else [named["train"]]
        sources = list({source.spec: source for found in counted for source in found}.values())
        specs = " + ".join(source.spec for source in sources)
        if kind == "sentencepiece":
            report(f"training a tokenizer of {config['vocab_size']} pieces on {specs}")
            texts = sample(sources, config["train_bytes"], holdout)
            partial.write_bytes(sentencepiece_tokenizer.train(texts, *(config[name] for name in TRAINED)))
            return
        report(f"counting the {kind} of {specs}")
        if kind == "symbols":
            counted_tokenizer.save(partial, counted_tokenizer.count_symbols(sample(sources, math.inf, 0.0)))
        else:
            words = counted_tokenizer.count_words(sample(sources, math.inf, holdout), config["vocab_size"])
            counted_tokenizer.save(partial, words)


def sample(sources: Sequence[Source], budget: float, holdout: float) -> Iterator[str]:
    """Text of about `budget` bytes, whole documents from all over the sources, none of them held out.

    The choice depends on the sources alone. Of large sources a part is read: spans in random order.
    """
    total = sum(file.size for source in sources for file in source.files())
    target = max(1 << 16, total >> 16)  # bytes of a file read in a row, where it can be cut: at most 65,536 spans
    spans = [(source, span) for source in sources for span in source.spans(target)]
    random.Random(0).shuffle(spans)
    for source, span in spans:
        for document in source.documents(span):
            if document.place < holdout:
                continue
            for text in document.chunks:
                if budget <= 0:
                    return
                yield text
                budget -= len(text.encode("utf-8"))
