"""The folder of a run's tokenizer: made once, by training or from a ready file, then read by every command.

made.json              the settings it was made from and its file's checksum; written last
sentencepiece.model    or another kind's `file`
"""

import itertools
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.io import checksum, local_copy, lock, open_path, read_json, remove_partial, replace, writable
from input_pipeline.io import write_json as write_settings
from input_pipeline.sources.base import Source
from input_pipeline.tokenizers import huggingface
from input_pipeline.tokenizers.base import Bytes, Tokenizer, extend, is_code
from input_pipeline.tokenizers.settings import JSON, KINDS, required, text, training_flags

MADE = "made.json"
# Entries of made.json besides settings: CRC-32 of the tokenizer's file; settings of the other run that it was inherited
# from; and tokens of a ready file by special id, from settings beside it.
CHECKSUM, BASE, ROLES = "checksum", "base", "roles"
BASE_SETTINGS = ("kind", "unknown", "special", "sentinels", BASE, ROLES)  # kept of the other run's
INHERITED = (
    "kind",
    "path",
    "cased",
    "sentinels",
)  # settings of a tokenizer inherited from another run without being named


def make_folder(
    folder: Path,
    config: Mapping,
    named: Mapping[str, Sequence[Source]],
    holdout: float,
    report: Callable[[str], None],
    special: Sequence[str] = (),
    inherited: Path | None = None,
    accept: Callable[[Tokenizer], None] = lambda tokenizer: None,
    roles: Mapping[str, str] | None = None,
) -> Tokenizer:
    """Opens the tokenizer in `folder`, after making the one that `config` asks for if there is none.

    named: sources of each split; symbols are counted in all of them, everything else in the training split.
    special: special ids that the task needs, added to a tokenizer made here.
    inherited: folder of another run's tokenizer, used if `config` names none.
    accept: raises if the tokenizer is unusable; then a new one is not kept.
    roles: tokens of the ready file by special id.

    Several processes may call this at once: one works, the others wait. Errors: DataError for a tokenizer made from
    other settings or without the special ids.
    """
    folder, asked, tokenizer = open_path(folder), required(config, named, holdout, special), None
    if not is_made(folder):
        waiting = partial(report, "waiting for the tokenizer")
        with writable(folder, "--workdir"), lock(folder / "lock", waiting):
            # Another process may have made it meanwhile.
            if not is_made(folder):
                remove_partial(folder)
                other = _other_folder(config, inherited)
                settings = _settings(config, asked, other) | ({ROLES: dict(roles)} if roles else {})
                if KINDS[config["kind"]].file:
                    settings[CHECKSUM] = _make(folder, config, named, settings, other, report)
                tokenizer = _open(folder, settings)
                _check_special(tokenizer, special, config)
                accept(tokenizer)
                # Last: a killed or refused run leaves no made.json, and the next one starts again.
                write_settings(folder / MADE, settings)
    if tokenizer is None:
        was = read_settings(folder)
        # Training settings do not matter for a tokenizer that another run trained.
        if BASE in was and not was.get("path"):
            asked = {name: asked[name] for name in INHERITED if name in asked}
        names = [name for name in {**asked, **was} if name not in (CHECKSUM, BASE, ROLES)]
        _check_same(folder, was, asked, names)
        tokenizer = _open(folder, was)
        _check_special(tokenizer, special, config)
        accept(tokenizer)
    return tokenizer


def is_made(folder: Path) -> bool:
    """Whether a folder has a finished tokenizer."""
    return (folder / MADE).is_file()


def open_folder(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`."""
    return _open(open_path(folder), read_settings(folder))


def read_settings(folder: Path) -> dict:
    """The settings that the tokenizer in `folder` was made from."""
    return read_json(open_path(folder) / MADE)


def verified_file(folder: Path, settings: Mapping) -> Path:
    """The file of a tokenizer, on this machine. Errors: DataError if it is missing or damaged."""
    path = open_path(folder) / KINDS[settings["kind"]].file
    copy = local_copy(path) if path.is_file() else None
    # Settings of another run, in `base`, are without its checksum.
    if copy is None or settings.get(CHECKSUM) not in (None, checksum(copy)):
        raise DataError(f"{path} is missing or damaged. Restore it, or delete {folder}.")
    return copy


def flags(folder: Path) -> str:
    """The flags that give a run the tokenizer that another has in `folder`."""
    settings = read_settings(folder)
    value = f"path={folder}" if settings["kind"] != "bytes" else f"sentinels={settings.get('sentinels', 0)}"
    return f"--config.tokenizer.kind={settings['kind']} --config.tokenizer.{value}"


def settings_chain(folder: Path) -> list[dict]:
    """The settings of the tokenizer in `folder`, of the run that it was taken from, and so on to its file's own."""
    chain = [read_settings(folder)]
    while BASE in chain[-1]:
        chain.append(chain[-1][BASE])
    return chain


def added_tokens(folder: Path) -> list[str]:
    """Tokens of the ids beyond those of the tokenizer's file, in order: the first sentinel is last."""
    chain = settings_chain(folder)
    # Each run after the one that made the file added its ids above those before.
    tokenizer, tokens = _open_file(folder, chain[-1]), []
    for settings in reversed(chain):
        special, before, tokenizer = settings.get("special", []), tokenizer.vocab_size, _complete(tokenizer, settings)
        sentinels = tokenizer.vocab_size - before - len(special)
        tokens += [name if is_code(name) else f"<{name}>" for name in special]
        tokens += [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    return tokens


def _open(folder: Path, settings: Mapping) -> Tokenizer:
    """The tokenizer in `folder` with all its ids, those that it had in the run it was inherited from first."""
    if BASE in settings:
        base = _open(folder, {CHECKSUM: settings.get(CHECKSUM)} | settings[BASE])
    else:
        base = _open_file(folder, settings)
    return _complete(base, settings)


def _open_file(folder: Path, settings: Mapping) -> Tokenizer:
    return Bytes() if settings["kind"] == "bytes" else _load(verified_file(folder, settings), settings)


def _load(path: Path, settings: Mapping) -> Tokenizer:
    arguments = {name: settings[name] for name in ("unknown", ROLES) if name in settings}
    return KINDS[settings["kind"]].open(path, **arguments)


def _complete(tokenizer: Tokenizer, settings: Mapping) -> Tokenizer:
    """The tokenizer with the special ids and sentinels of `settings`."""
    sentinels = settings.get("sentinels", 0)
    # A file's own sentinels are used; as many may be asked for, as recipes for T5 do.
    if sentinels and tokenizer.sentinels:
        if sentinels != len(tokenizer.sentinels):
            raise DataError(
                f"tokenizer.sentinels={sentinels}, but {_origin(settings)} has {len(tokenizer.sentinels)}. "
                "Set --config.tokenizer.sentinels=0."
            )
        sentinels = 0
    return extend(tokenizer, settings.get("special", ()), sentinels)


def _origin(settings: Mapping) -> str:
    return f"tokenizer.path={settings['path']}" if settings.get("path") else "the other run's tokenizer"


def _settings(config: Mapping, asked: Mapping, other: Path | None) -> dict:
    """The content of made.json for a tokenizer made as `asked`, or inherited from the folder `other`."""
    if not other:
        return dict(asked)
    theirs = read_settings(other)
    same = ["kind", *["unknown"] * bool(config["unknown"]), *["cased"] * ("cased" in theirs)]
    _check_same(other, theirs, config, same)
    base = {BASE: {name: theirs[name] for name in BASE_SETTINGS if name in theirs}}
    # Without a name the tokenizer is the other run's as it is, with no ids for this run's task.
    return {name: asked[name] for name in asked if config["path"] or name in INHERITED} | base


def _make(folder: Path, config: Mapping, named, settings: Mapping, other: Path | None, report) -> int:
    """Makes the tokenizer's file, and returns its checksum."""
    kind = KINDS[config["kind"]]
    if other:
        report(f"taking the tokenizer in {other}")
        content = verified_file(other, read_settings(other)).read_bytes()
    elif config["path"]:
        path = local_copy(_named_path(config))
        if kind.read:
            content = kind.read(path, config)
        else:
            # Opened before the copy is, so that an error names the user's file.
            _load(path, settings)
            content = path.read_bytes()
    else:
        content = _train(config, named, settings["data.holdout"], report)
    file = folder / kind.file
    with replace(file) as partial_file:
        partial_file.write_bytes(content)
    if "vocab_size" in settings and (size := _load(local_copy(file), settings).vocab_size) < settings["vocab_size"]:
        report(f"the training text yields {size} pieces, not {settings['vocab_size']}")
    return checksum(file)


def _train(config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float, report) -> bytes:
    """The file of a tokenizer trained on sources."""
    name, kind = config["kind"], KINDS[config["kind"]]
    # A source may be in several splits: its text counts once.
    sources = list({source.spec: source for some in text(name, named).values() for source in some}.values())
    report(f"training tokenizer.kind={name} on {' + '.join(source.spec for source in sources)}")
    # Symbols need an id for every byte of any split; words are counted in all text that is trained on.
    budget = math.inf if kind.of_all_text else config["train_bytes"]
    texts = sample(sources, budget, 0.0 if name == "symbols" else holdout)
    if (first := next(filter(None, texts), None)) is None:
        raise DataError("data.train has no text to train the tokenizer on. Check the source.")
    return kind.train(itertools.chain([first], texts), *(config[key] for key in kind.trained))


def sample(sources: Sequence[Source], budget: float, holdout: float) -> Iterator[str]:
    """Text of about `budget` bytes: whole documents from all over the sources, without held-out ones.

    The choice depends on the sources alone. Reads a part of large sources: spans in random order.
    """
    total = sum(file.size for source in sources for file in source.files())
    target = max(1 << 16, total >> 16)  # bytes read in a row where a file can be cut: at most 65,536 spans
    spans = [(source, span) for source in sources for span in source.spans(target)]
    # Shuffled, so that a small budget samples all files; a fixed seed gives the same tokenizer each time.
    random.Random(0).shuffle(spans)
    for source, span in spans:
        for document in source.good_documents(span):
            if document.holdout_rank < holdout:
                continue
            for chunk in document.chunks:
                if budget <= 0:
                    return
                yield chunk
                budget -= len(chunk.encode("utf-8"))


def _check_same(folder: Path, was: Mapping, asked: Mapping, names: Sequence[str]) -> None:
    """Raises DataError if the tokenizer in `folder` was made from other settings than `asked`."""
    for name in names:
        if asked.get(name) != was.get(name):
            raise DataError(
                f"tokenizer.{name}={asked.get(name)}: {folder} was made with {was.get(name)}. "
                "Set it back, or choose another --workdir."
            )


def _check_special(tokenizer: Tokenizer, needed: Sequence[str], config: Mapping) -> None:
    """Raises DataError if the tokenizer lacks a special id that the task needs."""
    if lacking := [name for name in needed if name not in tokenizer.special]:
        raise DataError(
            f"config.objective needs special ids that {_origin(config)} lacks: {', '.join(lacking)}. "
            f"Name another, or train one: --config.tokenizer.path= {training_flags(config)}"
        )


def _named_path(config: Mapping) -> Path:
    return open_path(os.path.expanduser(config["path"]))


def _other_folder(config: Mapping, inherited: Path | None) -> Path | None:
    """The folder of another run's tokenizer that `config` names, or else `inherited`."""
    named = config["path"] and config["kind"] != "bytes"
    path = _named_path(config) if named else inherited and open_path(inherited)
    return _folder_of(path) if path else None


def _folder_of(path: Path) -> Path | None:
    """The folder of a run's tokenizer, if `path` is one or its file."""
    folder = path if path.is_dir() else path.parent
    is_its_file = path == folder or path.name in {kind.file for kind in KINDS.values()}
    return folder if is_its_file and is_made(folder) else None


def check(folder: Path, config: Mapping, inherited: bool = False) -> None:
    """Raises DataError if the tokenizer's file or package is missing. A tokenizer in `folder` needs no file.

    `inherited`: another run's tokenizer is used if `config` names none.
    """
    kind, path = KINDS[config["kind"]], _named_path(config)
    if kind.is_tokenizer_json:
        huggingface.library()
    if not (kind.file and config["path"]) or path.is_file() or _folder_of(path) or is_made(open_path(folder)):
        return
    if within := [name for name in (JSON, "tokenizer.model", "spiece.model") if (path / name).is_file()]:
        remedy = f"Name its {within[0]}."
    elif inherited or kind.own is not None:
        remedy = "Leave it empty" + " to train one" * (not inherited) + ", or correct it."
    else:
        remedy = f"Correct it (docs/data.md has downloads), or set it to nothing and {training_flags(config)}."
    raise DataError(f"tokenizer.path={path} is no file. {remedy}")
