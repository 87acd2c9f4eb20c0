"""Checks of a config's data: all that can be known before a document is read.

`check` validates once at start-up and returns the sources. `check_settings` is its part that needs no files, for plans
and descriptions of runs whose text is elsewhere.
"""

import contextlib
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
from input_pipeline.sources import parser
from input_pipeline.sources.base import Source
from input_pipeline.sources.parser import EXAMPLES
from input_pipeline.splits import SPLITS, check_overlap, holdout_share
from input_pipeline.token_store.store import MANIFEST
from input_pipeline.tokenizers import settings as tokenizer_settings
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.base import Tokenizer

PROBE_BYTES = 1 << 16  # bytes of a source in which its first record is searched
WITHOUT_ENDS = ("concat", "stream", "examples")  # layouts that need no token between documents
UNMIXED = ("stream", *EXAMPLES)  # layouts that do not mix sources
OF_SENTENCES = ("pairs", "sentences", "halves")  # layouts that need to know where sentences end


def check(
    data: Mapping, tokenizer: Mapping, objective: Mapping, folders: Folders, inherited: bool = False
) -> dict[str, list[Source]]:
    """Checks settings, files and first records; returns the sources of train, validation and test by split.

    data, tokenizer, objective: sections of configs/common.py.
    inherited: another run's tokenizer is used if the config names none.
    Sources whose token stores in `folders` are complete need no files any more. Errors: DataError.
    """
    inherited = inherited or tokenizer_store.is_made(folders.tokenizer)
    named, share = check_settings(data, tokenizer, objective, inherited), holdout_share(data)
    tokenizer_store.check(folders.tokenizer, tokenizer, inherited)
    if data["layout"] in EXAMPLES:  # whose records are read at once, if they are not kept
        check_overlap(named)
        return named
    missing = [
        source
        for name, found in named.items()
        for source in found
        if not (store_folder(source, share if name == "train" else 0.0, data, folders.data) / MANIFEST).is_file()
    ]
    # The tokenizer and the token store must divide a source alike.
    named["train"] = [source.dividing(share) for source in named["train"]]
    for source in missing:
        source.files()
        # One record is read: a wrong field shows before hours of tokenising.
        for span in itertools.islice(source.spans(PROBE_BYTES), source.records):
            next(source.good_documents(span), None)
    # Files that are gone did not overlap when they were tokenised.
    with contextlib.suppress(*[] if missing else [OSError]):
        check_overlap(named)
    return named


def check_settings(
    data: Mapping, tokenizer: Mapping, objective: Mapping, inherited: bool = False
) -> dict[str, list[Source]]:
    """The part of `check` that needs no file: settings that cannot be on any machine."""
    task = corruption.build(objective)
    _check_layout(data, tokenizer, task)
    check_length("data.length", data["length"], task)
    named = {name: parser.parse_data(data, data[name], f"data.{name}") for name in SPLITS if data[name]}
    for name, text in data.get("evaluations", {}).items():
        named[name] = parser.parse_data(data, text, f"evaluations.{name}.data")
    if "train" not in named:
        raise DataError("data.train is empty. Name a source, such as stdlib or text:/books/*.txt.")
    if data["layout"] != "stream":
        mixing_weights([(1, 1)] * len(named["train"]), data["weights"], data["temperature"], data["cap"])
    check_sources(list(itertools.chain(*named.values())), data, objective, task)
    # A language without text would be an embedding that is never trained.
    spoken = {name for source in named["train"] for name in source.languages}
    if missing := set(data["languages"]) - spoken:
        raise DataError(f"data.languages={tuple(data['languages'])}: data.train has no {min(missing)}. Remove it.")
    tokenizer_settings.check_settings(tokenizer, inherited)
    # A tokenizer that is not trained here has its own number of sentinels, which is in its file.
    trained_here = tokenizer_settings.is_made_here(tokenizer, inherited)
    if trained_here and not all(source.fields for source in named["train"]):
        task.check_sentinels(data["length"], tokenizer["sentinels"])
    return named


def _check_layout(data: Mapping, tokenizer: Mapping, task: Objective) -> None:
    layout, sentences, image, few = data["layout"], data["sentences"], data["image"], data["examples"]
    mixed = len(data["weights"]) or (data["temperature"], data["cap"]) != (1, 0)
    rules = (
        (layout in task.layouts, f"layout={layout}: not of objective.kind={task.kind}. Choose: {task.layouts}."),
        (sentences in ("", "lines"), f"sentences={sentences}: must be lines or empty."),
        (sentences or layout not in OF_SENTENCES, f"layout={layout}: needs sentences. Set data.sentences=lines."),
        (
            layout not in UNMIXED or not mixed,
            f"layout={layout}: does not mix. Unset data.weights, temperature and cap.",
        ),
        (not few or layout == "examples", f"examples={few}: needs data.layout=examples. Set 0."),
        (few or not data["balanced"], "balanced=True: is of a sample. Set data.examples too."),
        (data["on_bad_record"] in ("stop", "skip"), f"on_bad_record={data['on_bad_record']}: must be stop or skip."),
        (not image or tokenizer["kind"] == "bytes", f"image={image}: needs tokenizer.kind=bytes. Set it."),
    )
    for holds, problem in rules:
        if not holds:
            raise DataError(f"data.{problem}")


def check_sources(found: Sequence[Source], data: Mapping, objective: Mapping, task: Objective) -> None:
    """Raises DataError if fields, control codes or languages of sources do not fit the objective."""
    has_languages = bool(task.language_codes) or "languages" in task.features(1, data["length"])
    coded, names, layout = bool(objective.get("coded")), tuple(data["languages"]), data["layout"]
    if has_languages != bool(names) or task.language_codes not in ((), names):
        raise DataError(f"data.languages={names}: does not fit objective.languages. Set both alike, or neither.")
    for source in found:
        fields, code, language = ",".join(source.fields), source.code, source.language
        pair, needs_pair = len(source.fields) == 2, layout == "texts" or (task.uses_text_pairs and fields)
        # With data.languages, a source has one language, or two fields named after theirs.
        marked = bool(language) != pair if has_languages else not language
        rules = (
            (pair or not needs_pair, f"fields={fields} must be two, source and target. Add ?fields=inputs,targets."),
            (
                not fields or task.uses_text_pairs or has_languages,
                f"fields={fields}, but objective.kind={task.kind} reads one text. Use field=NAME.",
            ),
            (bool(code) == coded, f"code={code} with objective.coded={coded}. Give every source a code, or none."),
            (not code or layout == "concat", f"code={code} needs data.layout=concat. Set it."),
            (marked, f"language={language} with data.languages={names}. Add ?language=NAME if those are set."),
            (
                not has_languages or set(source.languages) <= set(names),
                f"language {', '.join(source.languages)} is not in data.languages={names}. Add it.",
            ),
        )
        for holds, problem in rules:
            if not holds:
                raise DataError(f"'{source.spec}': {problem}")


def check_length(key: str, length: int, task: Objective) -> None:
    """Raises DataError if rows of `length`, the value of `key`, are too short for an objective."""
    # Raw lengths grow with the row, so the first length that is enough is the least.
    if task.raw_length(length) < task.min_raw_length:
        least = next(longer for longer in itertools.count(length) if task.raw_length(longer) >= task.min_raw_length)
        raise DataError(f"{key}={length}: too short for objective.kind={task.kind}. Set at least {least}.")
    task.check_length(length)


def check_stride(stride: int, length: int, layout: str, task: Objective) -> None:
    """Raises DataError if evaluation windows of `length` cannot advance by `stride`."""
    overlaps = layout == "concat" and not task.drops_end_tokens
    if not 0 < stride <= length or (stride < length and not overlaps):
        raise DataError(
            f"evaluate.stride={stride}: windows of {length} tokens overlap only for concat and causal. Set 0."
        )


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
    cut += ["surrogates=replaced"] if data["replace_surrogates"] else []
    whole = " ".join(map(str, (source.spec, share, *data["image"], *cut)))
    digest = hashlib.blake2b(whole.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return store_root(data, root) / f"{name}-{digest}"
