"""The work folder's tokenizer: trained or copied in once, then read from there by every command."""

import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.files import (
    checksum,
    filled,
    locked,
    remove_partial,
    replaced,
    write_json,
    written_under,
)
from input_pipeline.remote import at, local
from input_pipeline.sources.sources import Source
from input_pipeline.tokenizers import converted, saved, subwords
from input_pipeline.tokenizers import counted as counted_tokenizer
from input_pipeline.tokenizers import huggingface as huggingface_tokenizer
from input_pipeline.tokenizers import sentencepiece as sentencepiece_tokenizer
from input_pipeline.tokenizers import wordpiece as wordpiece_tokenizer
from input_pipeline.tokenizers.saved import BASE, CHECKSUM, FILES, KINDS, LOAD, MADE, ROLES
from input_pipeline.tokenizers.tokenizer import SPECIAL, Bytes, Tokenizer

# Kinds that are made from data.train where there is no tokenizer.path, and bytes: the special ids that each has itself.
MADE_HERE = {
    "sentencepiece": ("end", "unknown"),
    "wordpiece": SPECIAL,
    "bytes": ("end",),
    "symbols": (),
    "words": ("end", "unknown"),
}
KEPT_OF_BASE = ("kind", "unknown", "special", "sentinels", BASE, ROLES)
TRAIN = {"sentencepiece": sentencepiece_tokenizer.train, "wordpiece": wordpiece_tokenizer.train}
# Kinds whose ready files are kept in another form: what makes that of a file.
READ = dict.fromkeys(("ctrl", "xlm"), subwords.read) | dict.fromkeys(("gpt", *converted.BEFORE), converted.read)
LEAST = 2  # entries of a vocabulary trained here: an end token and an unknown one
# Settings of a tokenizer that is taken from another run without being named.
TAKEN = ("kind", "path", "cased", "sentinels")
# Settings that a tokenizer trained here depends on, besides the text.
TRAINED = {
    "sentencepiece": ("vocab_size", "algorithm", "pieces"),
    "wordpiece": ("vocab_size", "cased"),
    "words": ("vocab_size",),
}


def make_folder(
    folder: Path,
    config: Mapping,
    named: Mapping[str, Sequence[Source]],
    holdout: float,
    report: Callable[[str], None],
    special: Sequence[str] = (),
    taken: Path | None = None,
    accept: Callable[[Tokenizer], None] = lambda tokenizer: None,
    roles: Mapping[str, str] | None = None,
) -> Tokenizer:
    """Makes the tokenizer that `config` asks for, if `folder` has none, and opens it.

    `named` are the sources of each split; symbols are counted in all of them, all else in what is trained on.
    `special` are the special ids that its task needs: a tokenizer made here gets those that its kind has not.
    `taken` is the folder of another run's tokenizer, which is taken where `config` names none. `accept` sees the
    tokenizer, and raises where it will not do; one of another run that does not is not kept.
    `roles` are tokens of the ready file that `config` names, by the special ids that they are.

    Several processes may call this at once: one works, the others wait. Errors: DataError if the folder's
    tokenizer was made from other settings, or has not the special ids.
    """
    settings = _settings(config, named, holdout, special)
    record = folder / MADE
    if not is_made(folder):
        waiting = partial(report, "waiting for the tokenizer")
        with written_under(folder, "--workdir"), locked(folder / "lock", waiting), filled(folder):
            if not is_made(folder):
                remove_partial(folder)
                if other := _other(config, taken):
                    settings |= {BASE: _base(other, config)}
                    if not config["path"]:
                        settings = {name: settings[name] for name in (*TAKEN, BASE) if name in settings}
                else:
                    _check_named(config)
                if roles:
                    settings |= {ROLES: dict(roles)}
                _make(folder, config, settings, named, report, special, other)
                if "vocab_size" in settings:
                    pieces = saved.load(local(folder / FILES[settings["kind"]]), settings).vocab_size
                    if pieces < settings["vocab_size"]:
                        report(f"the training text yields {pieces} pieces, not {settings['vocab_size']}")
                of_file = {} if settings["kind"] == "bytes" else {CHECKSUM: checksum(folder / FILES[settings["kind"]])}
                if other:
                    accept(saved.opened(folder, settings | of_file))
                write_json(record, settings | of_file)
    was = saved.made(folder)
    if BASE in was and not was.get("path"):  # what one would be made from here is of no account
        settings = {name: settings[name] for name in TAKEN if name in settings}
    for name in {**settings, **was}:
        if name not in (CHECKSUM, BASE, ROLES) and settings.get(name) != was.get(name):
            raise DataError(
                f"{folder} holds a tokenizer made with {name} = {was.get(name)}, but the config says "
                f"{settings.get(name)}; set it back, choose another --workdir, or, if nothing was trained with it yet, "
                f"delete {folder}"
            )
    opened = saved.open_folder(folder)
    _check_special(opened, special, config)
    accept(opened)
    return opened


def _folder_of(path: Path) -> Path | None:
    """The folder of a run's tokenizer which `path` is, or of which it is the file; None where it is another file."""
    folder = path if path.is_dir() else path.parent
    ours = (folder / MADE).is_file() and (path == folder or path.name in FILES.values())
    return folder if ours else None


def _other(config: Mapping, taken: Path | None) -> Path | None:
    """The folder of another run's tokenizer that `config` names, or that is `taken` where it names none."""
    if config["kind"] == "bytes":
        return None
    named = at(config["path"]).expanduser() if config["path"] else taken
    return _folder_of(named) if named else None


def _base(other: Path, config: Mapping) -> dict:
    """What is needed of what the tokenizer in `other` was made from; DataError where `config` says another thing."""
    there = saved.made(other)
    for name in ("kind", "unknown"):
        if config[name] and config[name] != there.get(name, ""):
            raise DataError(
                f"tokenizer.{name} = '{config[name]}', but the tokenizer in {other} was made with {name} = "
                f"'{there.get(name, '')}'; set --config.tokenizer.{name}={there.get(name, '')}"
            )
    return {name: there[name] for name in KEPT_OF_BASE if name in there}


def _check_special(tokenizer: Tokenizer, needed: Sequence[str], config: Mapping) -> None:
    """Raises DataError where a ready file lacks a special id that the task needs."""
    lacking = [name for name in needed if name not in tokenizer.special]
    if lacking:
        raise DataError(
            f"config.objective needs a tokenizer with the special id{'s' * (len(lacking) > 1)} {', '.join(lacking)}, "
            f"which {saved.named(config)} has not; name a file that has, or train one: "
            f"--config.tokenizer.path= {_trained_instead(config)}"
        )


def _settings(
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
    if not _made_here(config) or config["kind"] == "symbols":
        return None
    own = Bytes().vocab_size if config["kind"] == "bytes" else config["vocab_size"]
    return own + len(_lacking(config, special)) + config["sentinels"]


def _lacking(config: Mapping, special: Sequence[str]) -> list[str]:
    """The special ids that a tokenizer which is made here gets besides its own."""
    return [name for name in special if name not in MADE_HERE[config["kind"]]] if _made_here(config) else []


def _made_here(config: Mapping) -> bool:
    """Whether the tokenizer comes from no file: bytes never do."""
    return config["kind"] == "bytes" or (config["kind"] in MADE_HERE and not config["path"])


def _trained_instead(config: Mapping) -> str:
    """The flags with which a tokenizer is trained where one of a kind that is not was to be read."""
    return "--config.tokenizer.kind=sentencepiece" + " --config.tokenizer.unknown=" * bool(config["unknown"])


def check_settings(config: Mapping, taken: bool = False) -> None:
    """Raises DataError for settings of which no tokenizer can be made.

    `taken` says that there is another run's, or the folder's own, where `config` names none.
    """
    _settings(config, {"train": ()}, 0.0)
    if not taken:
        _check_named(config)


def is_made(folder: Path) -> bool:
    """Whether a folder holds a tokenizer that was made to the end."""
    return (folder / MADE).is_file()


def _check_named(config: Mapping) -> None:
    """Raises DataError where a kind of which none is made here has no file."""
    kind = config["kind"]
    if not config["path"] and kind not in MADE_HERE:
        raise DataError(
            f"tokenizer.kind = {kind} trains no tokenizer; set tokenizer.path to its file, such as "
            f"{converted.FILES.get(kind, 'tokenizer.json')}, or train one: {_trained_instead(config)}"
        )


def check(folder: Path, config: Mapping, taken: bool = False) -> None:
    """Raises DataError where the tokenizer's file or package is missing; what `folder` holds needs no file any more.

    `taken` as of `check_settings`.
    """
    kind, path = config["kind"], at(config["path"]).expanduser()
    if LOAD.get(kind) is huggingface_tokenizer.load:
        huggingface_tokenizer.library()
    if kind == "bytes" or not config["path"] or path.is_file() or _folder_of(path) or is_made(folder):
        return
    if taken:
        other = "take the other run's: --config.tokenizer.path="
    elif kind in MADE_HERE:
        other = "leave it empty to train one"
    else:
        other = f"train one: --config.tokenizer.path= {_trained_instead(config)}"
    within = [name for name in ("tokenizer.json", "tokenizer.model", "spiece.model") if (path / name).is_file()]
    if within:
        raise DataError(
            f"tokenizer.path = '{path}' is a folder; name its file, {path / within[0]}"
            + (", with tokenizer.kind = huggingface" if within[0].endswith(".json") and kind != "huggingface" else "")
        )
    raise DataError(
        f"tokenizer.path = '{path}' is no file; correct it, or {other} (docs/files.md "
        "has commands that fetch the tokenizers of recipes)"
    )


def _make(
    folder: Path, config: Mapping, settings: Mapping, named, report, special: Sequence[str], other: Path | None
) -> None:
    kind = config["kind"]
    if kind == "bytes":
        return
    with replaced(folder / FILES[kind]) as partial:
        if other:
            report(f"taking the tokenizer in {other}")
        if other or config["path"]:
            path = saved.whole(other, saved.made(other)) if other else local(at(config["path"]).expanduser())
            if kind == "wordpiece" or (kind in READ and not other):
                made = (
                    wordpiece_tokenizer.read(path, config["cased"]) if kind == "wordpiece" else READ[kind](path, kind)
                )
                partial.write_bytes(made)
                loaded = saved.own(partial, settings)
            else:
                loaded = saved.own(
                    path, settings
                )  # what is no tokenizer is not kept, and is named where the user has it
                shutil.copyfile(path, partial)
            _check_special(saved.completed(loaded, settings), special, config)
            return
        holdout = settings["data.holdout"]
        counted = named.values() if kind == "symbols" else [named["train"]]
        sources = list({source.spec: source for found in counted for source in found}.values())
        specs = " + ".join(source.spec for source in sources)
        if kind in TRAIN:
            report(f"training a tokenizer of {config['vocab_size']} pieces on {specs}")
            texts = sample(sources, config["train_bytes"], holdout)
            partial.write_bytes(TRAIN[kind](texts, *(config[name] for name in TRAINED[kind])))
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
