"""The work folder's tokenizer: trained or copied in once, then read from there by every command."""

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from input_pipeline import huggingface_tokenizer, sentencepiece_tokenizer
from input_pipeline.errors import DataError
from input_pipeline.files import locked, read_json, remove_partial, replaced, write_json, written_under
from input_pipeline.sources import Source
from input_pipeline.tokenizer import Bytes, Tokenizer

KINDS = ("sentencepiece", "bytes", "huggingface")
TRAINABLE = ("sentencepiece",)  # kinds that are made from data.train where there is no tokenizer.path
MADE = "made.json"  # what the tokenizer was made from; written last
FILES = {"sentencepiece": "sentencepiece.model", "huggingface": "tokenizer.json"}
TRAINED = ("vocab_size", "algorithm", "pieces")  # settings of a tokenizer trained here


def open_folder(folder: Path) -> Tokenizer:
    """The tokenizer saved in `folder`."""
    kind = read_json(folder / MADE)["kind"]
    if kind != "bytes" and not (folder / FILES[kind]).is_file():
        raise DataError(f"{folder / FILES[kind]} is missing; restore it, or delete {folder} and run prepare again")
    return _load(folder, kind)


def _load(folder: Path, kind: str) -> Tokenizer:
    if kind == "bytes":
        return Bytes()
    return {"sentencepiece": sentencepiece_tokenizer, "huggingface": huggingface_tokenizer}[kind].load(
        folder / FILES[kind]
    )


def make_folder(
    folder: Path, config: Mapping, sources: Sequence[Source], holdout: float, report: Callable[[str], None]
) -> Tokenizer:
    """Makes the tokenizer that `config` asks for, if `folder` has none, and opens it.

    Several processes may call this at once: one works, the others wait. Errors: DataError if the folder's
    tokenizer was made from other settings.
    """
    settings = _settings(config, sources, holdout)
    made = folder / MADE
    if not made.is_file():
        with written_under(folder, "--workdir"), locked(folder / "lock", lambda: report("waiting for the tokenizer")):
            if not made.is_file():
                remove_partial(folder)
                _make(folder, config, sources, holdout, report)
                opened = _load(folder, config["kind"])  # a file that is no tokenizer is not kept
                if "vocab_size" in settings and opened.vocab_size < settings["vocab_size"]:
                    report(f"the training text yields {opened.vocab_size} pieces, not {settings['vocab_size']}")
                write_json(made, settings)
    was = read_json(made)
    for name in {**settings, **was}:
        if settings.get(name) != was.get(name):
            raise DataError(
                f"{folder} holds a tokenizer made with {name} = {was.get(name)}, but the config says "
                f"{settings.get(name)}; set it back, choose another --workdir, or delete that folder"
            )
    return open_folder(folder)


def _settings(config: Mapping, sources: Sequence[Source], holdout: float) -> dict:
    """What the tokenizer depends on, by config key."""
    kind = config["kind"]
    if kind not in KINDS:
        raise DataError(f"tokenizer.kind is '{kind}'; choose one of: {', '.join(KINDS)}")
    if kind == "bytes":
        return {"kind": kind}
    if config["path"]:
        return {"kind": kind, "path": config["path"]}
    if kind not in TRAINABLE:
        raise DataError(
            f"tokenizer.kind = {kind} trains no tokenizer; set tokenizer.path to a tokenizer.json, or train one with "
            "tokenizer.kind = sentencepiece"
        )
    trained = {name: config[name] for name in (*TRAINED, "train_bytes")}
    return {"kind": kind, "path": "", **trained, "data.train": [s.spec for s in sources], "data.holdout": holdout}


def check(folder: Path, config: Mapping) -> None:
    """Raises DataError for a tokenizer that cannot be made; one that `folder` holds needs no file any more."""
    kind, path = config["kind"], Path(config["path"]).expanduser()
    _settings(config, (), 0.0)
    if kind == "bytes" or not config["path"] or path.is_file() or (folder / MADE).is_file():
        return
    other = (
        "leave it empty to train one"
        if kind in TRAINABLE
        else "train one: --config.tokenizer.path= --config.tokenizer.kind=sentencepiece"
    )
    raise DataError(
        f"tokenizer.path = '{path}' is no file; correct it, or {other} (docs/data.md, under 'Files that recipes need', "
        "has commands that fetch the tokenizers of recipes)"
    )


def _make(folder: Path, config: Mapping, sources, holdout: float, report) -> None:
    kind = config["kind"]
    if kind == "bytes":
        return
    with replaced(folder / FILES[kind]) as partial:
        if config["path"]:
            shutil.copyfile(Path(config["path"]).expanduser(), partial)
            return
        report(f"training a tokenizer of {config['vocab_size']} pieces on {' + '.join(s.spec for s in sources)}")
        texts = sample(sources, config["train_bytes"], holdout)
        partial.write_bytes(sentencepiece_tokenizer.train(texts, *(config[name] for name in TRAINED)))


def sample(sources: Sequence[Source], budget: int, holdout: float) -> Iterator[str]:
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
