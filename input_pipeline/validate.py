"""Checks of a config's data: all that can be known before a document is read.

`check` validates once at start-up and returns the sources. `check_settings` is its part that needs no files, for plans
and descriptions of runs whose text is elsewhere.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from input_pipeline import corruption
from input_pipeline.batching.mixture import mixing_weights
from input_pipeline.corruption.base import Objective
from input_pipeline.errors import DataError
from input_pipeline.io import Folders, open_path
from input_pipeline.sources import images, parser
from input_pipeline.sources.base import Source
from input_pipeline.splits import SPLITS, check_overlap, holdout_share
from input_pipeline.token_store.store import MANIFEST
from input_pipeline.token_store.stream import Stream
from input_pipeline.tokenizers import settings as tokenizer_settings
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.base import Tokenizer

FIRST = 1 << 16  # bytes of a source in which its first record is searched
WITHOUT_ENDS = ("concat", "stream")  # layouts that need no token between documents
OF_SENTENCES = ("pairs", "sentences", "halves")  # layouts that need to know where sentences end


def check(
    data: Mapping, tokenizer: Mapping, objective: Mapping, folders: Folders, taken: bool = False
) -> dict[str, list[Source]]:
    """Checks settings, files and first records; returns the sources of train, validation and test by split.

    data, tokenizer, objective: sections of configs/common.py.
    taken: another run's tokenizer is used if the config names none.
    Sources whose token stores in `folders` are complete need no files any more. Errors: DataError.
    """
    taken = taken or tokenizer_store.is_made(folders.tokenizer)
    named, share = check_settings(data, tokenizer, objective, taken), holdout_share(data)
    tokenizer_store.check(folders.tokenizer, tokenizer, taken)
    missing = [
        (source, name)
        for name, found in named.items()
        for source in found
        if not (store_folder(source, share if name == "train" else 0.0, data, folders.data) / MANIFEST).is_file()
    ]
    named["train"] = [source.dividing(share) for source in named["train"]]
    for source, name in missing:
        _check_files(source, name)
    try:
        check_overlap(named)
    except OSError:
        if missing:
            raise  # else files are gone that did not overlap when they were tokenised
    return named


def check_settings(
    data: Mapping, tokenizer: Mapping, objective: Mapping, taken: bool = False
) -> dict[str, list[Source]]:
    """The part of `check` that needs no file: settings that cannot be on any machine."""
    task = corruption.build(objective)
    _check_layout(data, tokenizer, objective, task)
    check_length("data.length", data["length"], task)
    images.check(data, tokenizer)
    named = {name: parser.parse(data[name], f"data.{name}", data["image"]) for name in SPLITS if data[name]}
    if "train" not in named:
        raise DataError("data.train is empty. Name a source, such as stdlib or text:/books/*.txt.")
    _check_mixing(data, len(named["train"]))
    check_sources(list(itertools.chain(*named.values())), data, objective, task)
    _check_language_names(named["train"], data["languages"])
    tokenizer_settings.check_settings(tokenizer, taken)
    # A tokenizer that is not trained here has its own number of sentinels, which is in its file.
    trained_here = tokenizer_settings.is_made_here(tokenizer, taken)
    if trained_here and not all(source.fields for source in named["train"]):
        task.check_sentinels(data["length"], tokenizer["sentinels"])
    return named


def _check_layout(data: Mapping, tokenizer: Mapping, objective: Mapping, task: Objective) -> None:
    layout = data["layout"]
    if layout not in task.layouts:
        choices = ", ".join(task.layouts)
        if layout in type(task).layouts:
            raise DataError(
                f"data.layout={layout}: rows have no pairs. Set objective.next_sentence=False or choose: {choices}."
            )
        raise DataError(f"data.layout={layout}: not of objective.kind={objective['kind']}. Choose one of: {choices}.")
    if tokenizer["kind"] == "symbols" and layout not in WITHOUT_ENDS:
        raise DataError(f"data.layout={layout}: tokenizer.kind=symbols has no end token. Use kind=bytes.")
    if data["sentences"] not in ("", "lines"):
        raise DataError(f"data.sentences={data['sentences']}: must be lines or empty.")
    if layout in OF_SENTENCES and not data["sentences"]:
        raise DataError(f"data.layout={layout}: needs sentences, one a line. Set data.sentences=lines.")
    if data["sentences"] and data["image"]:
        raise DataError(f"data.sentences={data['sentences']}: images of data.image have no sentences. Leave it empty.")


def _check_mixing(data: Mapping, count: int) -> None:
    mixing = data["weights"], data["temperature"], data["cap"]
    if data["layout"] != "stream":
        mixing_weights([(1, 1)] * count, *mixing)
    elif len(mixing[0]) or mixing[1:] != (1, 0):
        raise DataError("data.layout=stream does not mix. Unset data.weights, data.temperature and data.cap.")


def check_sources(found: Sequence[Source], data: Mapping, objective: Mapping, task: Objective) -> None:
    """Raises DataError if fields, control codes or languages of sources do not fit the objective."""
    has_languages = bool(task.language_codes) or "languages" in task.features(1, data["length"])
    coded, names, kind = bool(objective.get("coded")), tuple(data["languages"]), objective["kind"]
    if task.language_codes and task.language_codes != names:
        raise DataError(f"objective.languages={task.language_codes}: data.languages={names} differs. Use one list.")
    if has_languages != bool(names):
        raise DataError(f"objective.languages: data.languages={names} does not fit. Set both or neither.")
    for source in found:
        spec, fields = f"'{source.spec}'", source.fields
        needs_pair = data["layout"] == "texts" or (task.uses_text_pairs and fields)
        if needs_pair and len(fields) != 2:
            raise DataError(
                f"{spec}: fields={','.join(fields)} must be two, source and target. Add ?fields=inputs,targets."
            )
        if fields and not (task.uses_text_pairs or has_languages):
            raise DataError(
                f"{spec}: fields={','.join(fields)}, but objective.kind={kind} reads one text. Use field={fields[-1]}."
            )
        if coded and not source.code:
            raise DataError(f"{spec}: objective.coded=True needs a control code. Add ?code=Books.")
        if source.code and not coded:
            raise DataError(f"{spec}: code={source.code} needs objective.coded=True. Set it or remove the code.")
        if source.code and data["layout"] != "concat":
            raise DataError(f"{spec}: code={source.code} needs data.layout=concat.")
        if source.language and not has_languages:
            raise DataError(f"{spec}: language={source.language} needs objective.languages. Set it or remove it.")
        if has_languages and bool(source.language) == (len(fields) == 2):
            raise DataError(f"{spec}: needs a language, or two fields named by theirs. Add ?language={names[0]}.")
        unknown = [name for name in source.languages if has_languages and name not in names]
        if unknown:
            raise DataError(f"{spec}: language {unknown[0]} is not in data.languages={names}. Add it.")


def _check_language_names(train: Sequence[Source], names: Sequence[str]) -> None:
    # A language without text would be an embedding that is never trained.
    spoken = {name for source in train for name in source.languages}
    if missing := [name for name in names if name not in spoken]:
        raise DataError(f"data.languages={tuple(names)}: no source of data.train has {missing[0]}. Remove it.")
    if len(set(names)) < len(names):
        raise DataError(f"data.languages={tuple(names)}: names a language twice.")


def check_length(key: str, length: int, task: Objective) -> None:
    """Raises DataError if rows of `length`, the value of `key`, are too short for an objective."""
    # Raw lengths grow with the row, so the first length that is enough is the least.
    if task.raw_length(length) < task.min_raw_length:
        least = next(longer for longer in itertools.count(length) if task.raw_length(longer) >= task.min_raw_length)
        raise DataError(f"{key}={length}: too short for objective.kind={task.kind}. Set at least {least}.")
    task.check_length(length)


def check_stride(stride: int, length: int, layout: str, task: Objective) -> None:
    """Raises DataError if evaluation windows of `length` cannot advance by `stride`."""
    if not 0 < stride <= length:
        raise DataError(f"evaluate.stride={stride}: longer than a row of {length} tokens. Lower it.")
    if stride < length and (layout != "concat" or task.drops_end_tokens):
        raise DataError(f"evaluate.stride={stride}: windows may overlap only in layout concat of causal. Set it to 0.")


def check_ends(tokenizer: Tokenizer, data: Mapping, report: Callable[[str], None]) -> None:
    """Raises DataError if a layout separates documents and the tokenizer has no token for it."""
    if tokenizer.end_id is None:
        if data["layout"] not in WITHOUT_ENDS:
            raise DataError(f"data.layout={data['layout']}: the tokenizer has no end token. Use concat or stream.")
        report("warning: the tokenizer has no end token, so documents are joined without one")


def store_root(data: Mapping, root: Path) -> Path:
    """Folder of all token stores: `data.store`, or else `root`."""
    return open_path(data["store"] or root)


def store_folder(source: Source, share: float, data: Mapping, root: Path) -> Path:
    """Folder of a source's token store, under `store_root`."""
    # A readable start, then a hash of all that changes what the store holds.
    name = re.sub(r"[^\w.]+", "-", source.spec).strip("-.")[:40]
    cut = [f"sentences={data['sentences']}"] if data["sentences"] else []
    whole = " ".join(map(str, (source.spec, share, *data["image"], *cut)))
    digest = hashlib.blake2b(whole.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return store_root(data, root) / f"{name}-{digest}"


def _check_files(source: Source, name: str) -> None:
    """Raises DataError if a source has no files, or its first record is not as its spec says."""
    try:
        source.files()
    except DataError as error:
        raise DataError(f"data.{name}: {error} See docs/data.md.") from None
    # One record is read: a wrong field shows before hours of tokenising.
    for span in itertools.islice(source.spans(FIRST), source.records):
        next(source.documents(span), None)


def explain_empty(name: str, data: Mapping, streams: Mapping[str, Stream]) -> str:
    """The message for a split without a token of text."""
    documents = streams[name].counts.documents
    if documents:
        return f"data.{name}: the tokenizer makes no token of its {documents:,} documents. Use other text."
    if holdout_share(data) and name in ("train", "validation"):
        rest = "train on" if name == "train" else "validate on"
        return f"data.holdout={data['holdout']}: no document is left to {rest}. Change it or add documents."
    return f"data.{name}={data.get(name, name)}: no text. Check the source."
