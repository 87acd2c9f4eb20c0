"""The folder of a run's tokenizer: made once, by training or from a ready file, then read by every command.

made.json              the settings it was made from and its file's checksum; written last
sentencepiece.model    or another name in `FILES`
"""

import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from input_pipeline.errors import DataError
from input_pipeline.io import checksum, local_copy, lock, open_path, read_json, remove_partial, replace, writable
from input_pipeline.io import write_json as write_settings
from input_pipeline.sources.base import Source
from input_pipeline.tokenizers import bpe, convert, counts, huggingface, sentencepiece, wordpiece
from input_pipeline.tokenizers.base import Bytes, Tokenizer, extend, is_code
from input_pipeline.tokenizers.settings import KINDS, TRAINABLE, TRAINED, check_named, required, training_flags

MADE = "made.json"
# Entries of made.json besides settings: CRC-32 of the tokenizer's file; settings of the other run that it was taken
# from; and tokens of a ready file by special id, from settings beside it.
CHECKSUM, BASE, ROLES = "checksum", "base", "roles"
BASE_SETTINGS = ("kind", "unknown", "special", "sentinels", BASE, ROLES)  # kept of the other run's
TAKEN = ("kind", "path", "cased", "sentinels")  # settings of a tokenizer taken from another run without being named
JSON = "tokenizer.json"
FILES = {
    "sentencepiece": "sentencepiece.model",
    "wordpiece": "wordpiece.json",
    "symbols": "symbols.json",
    "words": "words.json",
    **dict.fromkeys(("huggingface", "gpt", "xlm_roberta", "camembert"), JSON),
    **dict.fromkeys(("ctrl", "xlm"), "subwords.json"),
}
LOAD = {
    "sentencepiece": sentencepiece.load,
    "symbols": counts.load_symbols,
    "words": counts.load_words,
    **dict.fromkeys(("huggingface", "gpt", "xlm_roberta", "camembert", "wordpiece"), huggingface.load),
    **dict.fromkeys(("ctrl", "xlm"), bpe.load),
}
TRAIN = {"sentencepiece": sentencepiece.train, "wordpiece": wordpiece.train}
# Kinds whose ready files are stored in another form.
READ = dict.fromkeys(("ctrl", "xlm"), bpe.read) | dict.fromkeys(("gpt", *convert.PREFIXES), convert.read)


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
    """Opens the tokenizer in `folder`, after making the one that `config` asks for if there is none.

    named: sources of each split; symbols are counted in all of them, everything else in the training split.
    special: special ids that the task needs, added to a tokenizer made here. taken: folder of another run's tokenizer,
    used if `config` names none. accept: raises if the tokenizer will not do; then one of another run is not kept.
    roles: tokens of the ready file by special id.

    Several processes may call this at once: one works, the others wait. Errors: DataError for a tokenizer made from
    other settings or without the special ids.
    """
    folder, asked, accepted = open_path(folder), required(config, named, holdout, special), False
    if not is_made(folder):
        waiting = partial(report, "waiting for the tokenizer")
        with writable(folder, "--workdir"), lock(folder / "lock", waiting):
            if not is_made(folder):
                remove_partial(folder)
                other = _other_folder(config, taken)
                settings = _settings(config, asked, other, roles)
                settings = _make(folder, config, settings, named, other, special, report)
                if accepted := other is not None:
                    accept(_open(folder, settings))
                write_settings(folder / MADE, settings)
    _check_same(folder, asked)
    tokenizer = open_folder(folder)
    _check_special(tokenizer, special, config)
    if not accepted:
        accept(tokenizer)
    return tokenizer


def is_made(folder: Path) -> bool:
    """Whether a folder has a finished tokenizer."""
    return (folder / MADE).is_file()


def open_folder(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`."""
    return _open(open_path(folder), read_settings(folder))


def _open(folder: Path, settings: Mapping) -> Tokenizer:
    tokenizer = Bytes() if settings["kind"] == "bytes" else _load_taken(verified_file(folder, settings), settings)
    return _complete(tokenizer, settings)


def read_settings(folder: Path) -> dict:
    """The settings that the tokenizer in `folder` was made from. Errors: DataError if they are damaged."""
    path = open_path(folder) / MADE
    try:
        settings = read_json(path)
        if settings["kind"] in KINDS:
            return settings
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{path} is damaged. Restore it, or delete {folder} and run prepare again.")


def verified_file(folder: Path, settings: Mapping) -> Path:
    """The file of a tokenizer, on this machine. Errors: DataError if it is missing or damaged."""
    path = open_path(folder) / FILES[settings["kind"]]
    copy = local_copy(path) if path.is_file() else None
    if copy is None or (CHECKSUM in settings and settings[CHECKSUM] != checksum(copy)):
        raise DataError(f"{path} is missing or damaged. Restore it, or delete {folder} and run prepare again.")
    return copy


def flags(folder: Path) -> str:
    """The flags that give a run the tokenizer that another has in `folder`."""
    settings = read_settings(folder)
    value = f"path={folder}" if settings["kind"] != "bytes" else f"sentinels={settings.get('sentinels', 0)}"
    return f"--config.tokenizer.kind={settings['kind']} --config.tokenizer.{value}"


def added_tokens(folder: Path) -> list[str]:
    """Tokens of the ids beyond those of the tokenizer's file, in order: the first sentinel is last."""
    chain = [read_settings(folder)]
    while BASE in chain[-1]:
        chain.append(chain[-1][BASE])
    first = chain[-1]
    tokenizer = Bytes() if first["kind"] == "bytes" else _load(verified_file(folder, first), first)
    tokens = []
    for settings in reversed(chain):
        special, before, tokenizer = settings.get("special", []), tokenizer.vocab_size, _complete(tokenizer, settings)
        sentinels = tokenizer.vocab_size - before - len(special)
        tokens += [name if is_code(name) else f"<{name}>" for name in special]
        tokens += [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    return tokens


def sentencepiece_file(folder: Path) -> Path | None:
    """The model file of a SentencePiece tokenizer that rewrites text, which only its own library reproduces."""
    settings = read_settings(folder)
    if settings["kind"] != "sentencepiece" or sentencepiece.read_pieces(verified_file(folder, settings)).keep_text:
        return None
    return verified_file(folder, settings)


def class_files(folder: Path) -> dict[str, bytes]:
    """The files of a tokenizer of kind ctrl or xlm, by name. Errors: DataError if it has added ids."""
    settings = read_settings(folder)
    if tokens := added_tokens(folder):
        raise DataError(
            f"tokenizer.kind={settings['kind']} cannot be exported with added ids ({', '.join(tokens[:3])}). Set "
            "--config.tokenizer.sentinels=0."
        )
    return bpe.files(verified_file(folder, settings))


def tokenizer_json(folder: Path, template: Sequence[str] = (), pair: Sequence[str] = ()):
    """The tokenizer of `folder` as Hugging Face's `Tokenizer`, for export.

    `template` and `pair`, of a text and of a pair of texts, are those of `convert.set_template`; a file that has its
    own template keeps it. Errors: DataError for kinds that no tokenizer.json can express.
    """
    settings = read_settings(folder)
    kind = settings["kind"]
    if kind not in ("bytes", "sentencepiece") and LOAD[kind] is not huggingface.load:
        raise DataError(f"tokenizer.kind={kind} in {folder} cannot be a tokenizer.json. Train another kind to export.")
    path = None if kind == "bytes" else verified_file(folder, settings)
    model, opened = convert.tokenizer_json(kind, path, added_tokens(folder)), open_folder(folder)
    if template and model.post_processor is None:
        convert.set_template(model, opened.special, template, pair)
    return model


def _load(path: Path, settings: Mapping) -> Tokenizer:
    return LOAD[settings["kind"]](path, **{name: settings[name] for name in ("unknown", ROLES) if name in settings})


def _load_taken(path: Path, settings: Mapping) -> Tokenizer:
    """The tokenizer of the file `path`, with the ids that it had in the run it was taken from."""
    if BASE not in settings:
        return _load(path, settings)
    return _complete(_load_taken(path, settings[BASE]), settings[BASE])


def _complete(tokenizer: Tokenizer, settings: Mapping) -> Tokenizer:
    """The tokenizer with the special ids and sentinels of `settings`."""
    sentinels = settings.get("sentinels", 0)
    if sentinels and tokenizer.sentinels:
        if sentinels != len(tokenizer.sentinels):
            raise DataError(
                f"tokenizer.sentinels={sentinels}, but {_origin(settings)} has {len(tokenizer.sentinels)}. "
                "Set --config.tokenizer.sentinels=0."
            )
        sentinels = 0
    return extend(tokenizer, settings.get("special", ()), sentinels)


def _origin(settings: Mapping) -> str:
    return f"tokenizer.path={settings['path']}" if settings["path"] else "the other run's tokenizer"


def _settings(config: Mapping, asked: Mapping, other: Path | None, roles: Mapping[str, str] | None) -> dict:
    """The content of made.json for a tokenizer made as `asked`, or taken from the folder `other`."""
    settings = dict(asked)
    if other:
        settings |= {BASE: _base_settings(other, config)}
        if not config["path"]:
            settings = {name: settings[name] for name in (*TAKEN, BASE) if name in settings}
    else:
        check_named(config)
    return settings | ({ROLES: dict(roles)} if roles else {})


def _base_settings(other: Path, config: Mapping) -> dict:
    """Settings of the tokenizer in `other`. Errors: DataError if `config` contradicts them."""
    settings = read_settings(other)
    for name in ("kind", "unknown"):
        if config[name] and config[name] != settings.get(name, ""):
            raise DataError(
                f"tokenizer.{name}={config[name]}, but the tokenizer in {other} has {settings.get(name, '')!r}. Set "
                f"--config.tokenizer.{name}={settings.get(name, '')}."
            )
    return {name: settings[name] for name in BASE_SETTINGS if name in settings}


def _make(folder, config, settings: Mapping, named, other: Path | None, special, report) -> dict:
    """Makes the tokenizer's file, and returns `settings` with its checksum."""
    if config["kind"] == "bytes":
        return dict(settings)
    file = folder / FILES[config["kind"]]
    with replace(file) as partial_file:
        if other:
            report(f"taking the tokenizer in {other}")
        if other or config["path"]:
            tokenizer = _take(partial_file, config, settings, other)
            _check_special(_complete(tokenizer, settings), special, config)
        else:
            _train(partial_file, config, named, settings["data.holdout"], report)
            tokenizer = _load(partial_file, settings)
    if tokenizer.vocab_size < settings.get("vocab_size", 0):
        report(f"the training text yields {tokenizer.vocab_size} pieces, not {settings['vocab_size']}")
    return dict(settings) | {CHECKSUM: checksum(file)}


def _take(file: Path, config: Mapping, settings: Mapping, other: Path | None) -> Tokenizer:
    """Copies or converts the tokenizer in the folder `other`, or else at `tokenizer.path`, into `file`; opens it."""
    kind = config["kind"]
    path = verified_file(other, read_settings(other)) if other else local_copy(_named_path(config))
    if kind == "wordpiece":
        file.write_bytes(wordpiece.read(path, config["cased"]))
    elif kind in READ and not other:
        file.write_bytes(READ[kind](path, kind))
    else:
        tokenizer = _load_taken(path, settings)  # first, so that an error names the user's file
        shutil.copyfile(path, file)
        return tokenizer
    return _load_taken(file, settings)


def _train(file: Path, config: Mapping, named: Mapping[str, Sequence[Source]], holdout: float, report) -> None:
    """Trains or counts a tokenizer on sources and writes it into `file`."""
    kind = config["kind"]
    used = named.values() if kind == "symbols" else [named["train"]]
    sources = list({source.spec: source for some in used for source in some}.values())
    specs = " + ".join(source.spec for source in sources)
    if kind in TRAIN:
        report(f"training a tokenizer of {config['vocab_size']} pieces on {specs}")
        texts = sample(sources, config["train_bytes"], holdout)
        file.write_bytes(TRAIN[kind](texts, *(config[name] for name in TRAINED[kind])))
        return
    report(f"counting the {kind} of {specs}")
    if kind == "symbols":
        counts.save(file, counts.count_symbols(sample(sources, math.inf, 0.0)))
    else:
        counts.save(file, counts.count_words(sample(sources, math.inf, holdout), config["vocab_size"]))


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
        for document in source.documents(span):
            if document.place < holdout:
                continue
            for text in document.chunks:
                if budget <= 0:
                    return
                yield text
                budget -= len(text.encode("utf-8"))


def _check_same(folder: Path, asked: Mapping) -> None:
    """Raises DataError if the tokenizer in `folder` was made from other settings than `asked`."""
    was = read_settings(folder)
    if BASE in was and not was.get("path"):  # taken from another run: settings of training do not matter
        asked = {name: asked[name] for name in TAKEN if name in asked}
    for name in {**asked, **was}:
        if name not in (CHECKSUM, BASE, ROLES) and asked.get(name) != was.get(name):
            raise DataError(
                f"{folder} has a tokenizer made with {name}={was.get(name)}, but the config says {asked.get(name)}. "
                "Set it back, or choose another --workdir."
            )


def _check_special(tokenizer: Tokenizer, needed: Sequence[str], config: Mapping) -> None:
    """Raises DataError if the tokenizer lacks a special id that the task needs."""
    if lacking := [name for name in needed if name not in tokenizer.special]:
        raise DataError(
            f"config.objective needs the special ids {', '.join(lacking)}, which {_origin(config)} lacks. "
            f"Name another, or train one: --config.tokenizer.path= {training_flags(config)}"
        )


def _named_path(config: Mapping) -> Path:
    path = open_path(config["path"])
    return path.expanduser() if isinstance(path, Path) else path


def _other_folder(config: Mapping, taken: Path | None) -> Path | None:
    """The folder of another run's tokenizer that `config` names, or else `taken`."""
    if config["kind"] == "bytes":
        return None
    path = _named_path(config) if config["path"] else taken and open_path(taken)
    return _folder_of(path) if path else None


def _folder_of(path: Path) -> Path | None:
    """The folder of a run's tokenizer, if `path` is one or its file."""
    folder = path if path.is_dir() else path.parent
    return folder if is_made(folder) and (path == folder or path.name in FILES.values()) else None


def check(folder: Path, config: Mapping, taken: bool = False) -> None:
    """Raises DataError if the tokenizer's file or package is missing. A tokenizer in `folder` needs no file.

    `taken`: another run's tokenizer is used if `config` names none.
    """
    kind, path = config["kind"], _named_path(config)
    if LOAD.get(kind) is huggingface.load:
        huggingface.library()
    if kind == "bytes" or not config["path"] or path.is_file() or _folder_of(path) or is_made(open_path(folder)):
        return
    if within := [name for name in (JSON, "tokenizer.model", "spiece.model") if (path / name).is_file()]:
        raise DataError(f"tokenizer.path={path} is a folder. Name its file: {path / within[0]}.")
    remedy = f"train one: --config.tokenizer.path= {training_flags(config)}"
    if taken or kind in TRAINABLE:
        remedy = "leave it empty" + " to train one" * (not taken)
    raise DataError(f"tokenizer.path={path} is no file. Correct it (docs/files.md has download commands), or {remedy}.")
