"""What can be known to be wrong with a config's data before a single document is read."""

import contextlib
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from input_pipeline import corruption
from input_pipeline.away import hurry, passes, persistently
from input_pipeline.batching.mixture import mixing_weights
from input_pipeline.errors import DataError
from input_pipeline.folders import Folders
from input_pipeline.packing import languages, seq2seq
from input_pipeline.remote import at
from input_pipeline.sources import images, sources
from input_pipeline.sources.sources import Source
from input_pipeline.splits import SPLITS, both_read, check_apart, share_of
from input_pipeline.token_store.store import MANIFEST
from input_pipeline.token_store.stream import Stream
from input_pipeline.tokenizers import folder as tokenizer_folder
from input_pipeline.tokenizers import settings as tokenizer_settings
from input_pipeline.tokenizers.base import Tokenizer
from input_pipeline.tokenizers.names import NAMES

SETS = ("c4", "wikipedia", "pg19", "lm1b", "cifar10", "downsampled_imagenet")  # of TFDS, that recipes name
LONGER = 1 << 10  # lengths of rows, beyond those too short for any text, that are tried for one that a task takes
FIRST = 1 << 16  # bytes of a source in which its first record is looked for
SENTENCES = ("", "lines")
WITHOUT_ENDS = ("concat", "stream")  # layouts that need no token between documents
RECIPES = "; docs/data.md says how to fetch or lay out what a recipe reads"


def check(
    data: Mapping, tokenizer: Mapping, objective: Mapping, folders: Folders, taken: bool = False
) -> dict[str, list[Source]]:
    """The sources of each split that `data` names, as they are read: train, validation, test.

    `data`, `tokenizer` and `objective` are the sections of that name in configs/common.py; `taken` says that another
    run's tokenizer is there for a run that names none. Errors: DataError for
    settings that cannot be, files that are not there, records that are not as named, and text that is both trained on
    and scored. What `folders` hold already needs no source any more.
    """
    taken = taken or tokenizer_folder.is_made(folders.tokenizer)
    named, share = check_settings(data, tokenizer, objective, taken), share_of(data)
    tokenizer_folder.check(folders.tokenizer, tokenizer, taken)
    shares = {name: share if name == "train" else 0.0 for name in named}
    lacking = [
        (source, name)
        for name, found in named.items()
        for source in found
        if not persistently((store_folder(source, shares[name], data, folders.data) / MANIFEST).is_file)
    ]
    with contextlib.nullcontext() if lacking else hurry():
        named["train"] = [source.dividing(share) for source in named["train"]]
        for source, name in lacking:
            _check_there(source, name)
        try:
            check_apart(named)
        except OSError as error:
            if lacking or not passes(error):
                raise  # else they were apart when they were tokenised
    return named


def check_settings(
    data: Mapping, tokenizer: Mapping, objective: Mapping, taken: bool = False
) -> dict[str, list[Source]]:
    """The part of `check` that asks for no file: settings that cannot be, on any machine."""
    task = corruption.build(objective)
    if data["layout"] not in task.layouts:
        if objective.get("next_sentence") and data["layout"] in type(task).layouts:
            raise DataError(
                f"data.layout is '{data['layout']}', whose rows have no second text to ask about; set "
                f"--config.objective.next_sentence=False, or choose one of: {', '.join(task.layouts)}"
            )
        others = (kind for kind, other in corruption.OBJECTIVES.items() if data["layout"] in other.layouts)
        kind = next(others, objective["kind"])
        which = f", which objective.kind = {kind} takes and not {objective['kind']}" * (kind != objective["kind"])
        raise DataError(f"data.layout is '{data['layout']}'{which}; choose one of: {', '.join(task.layouts)}")
    check_length("data.length", data["length"], objective)
    if tokenizer["kind"] == "symbols" and data["layout"] not in WITHOUT_ENDS:
        raise DataError(
            f"data.layout = {data['layout']} tells documents apart, and tokenizer.kind = symbols has no end token "
            "between them; choose layout concat or stream, or tokenizer.kind = bytes"
        )
    if data["layout"] in ("pairs", "sentences", "halves") and not data["sentences"]:
        raise DataError(
            f"data.layout = {data['layout']} makes rows of sentences, and data.sentences does not say where they end; "
            "write one a line, and set data.sentences = lines"
        )
    if data["sentences"] and data["image"]:
        raise DataError(
            f"data.sentences is '{data['sentences']}', and data.image = {tuple(data['image'])} makes each image a "
            "document, without sentences; set --config.data.sentences= , or --config.data.image=()"
        )
    if data["sentences"] not in SENTENCES:
        raise DataError(
            f"data.sentences is '{data['sentences']}'; it must be lines, of text that has one sentence a line, or empty"
        )
    images.check(data, tokenizer)
    named = {name: sources.parse(data[name], f"data.{name}", data["image"]) for name in SPLITS if data[name]}
    if "train" not in named:
        raise DataError("data.train is empty; name a source, for example stdlib or text:/books/*.txt")
    _check_mixing(data, len(named["train"]))
    check_fields(itertools.chain(*named.values()), data, objective)
    for name in set(named) - {"train"}:
        for source, scored in itertools.product(named["train"], named[name]):
            if source.spec == scored.spec:
                raise both_read(name, source.spec, scored.spec, source.spec)
    tokenizer_settings.check_settings(tokenizer, taken)
    check_codes(itertools.chain(*named.values()), data["layout"], objective)
    check_languages(list(itertools.chain(*named.values())), data, objective)
    languages.check_all(named["train"], data["languages"])
    made_here = tokenizer_settings.is_made_here(tokenizer, taken)  # else its file tells how many it has
    if made_here and not all(source.fields for source in named["train"]):
        task.check_sentinels(data["length"], tokenizer["sentinels"])
    return named


def check_fields(found: Iterable[Source], data: Mapping, objective: Mapping) -> None:
    """Raises DataError where documents are made of other texts than their task reads."""
    task = corruption.build(objective)
    reads = task.two_texts or "languages" in task.features(1, data["length"])
    for source in found:
        if task.two_texts and (source.fields or data["layout"] == "texts"):
            seq2seq.check_fields(source.fields, f"'{source.spec}'")
        if source.fields and not reads:
            parallel = source.spec.startswith("parallel:")
            has = f"'{source.spec}' has the fields {', '.join(source.fields)}"
            alone = "text:FILE?document=line" if parallel else f"?field={source.fields[-1]}"
            if len(source.fields) == 1:
                raise DataError(f"{has}, and objective.kind = {objective['kind']} reads no fields; write {alone}")
            one = "one of its files, as" if parallel else "one of them, such as"
            raise DataError(
                f"{has}, and objective.kind = {objective['kind']} reads one text a document, in which nothing would "
                f"stand between them; read {one} {alone}, or join them as the text is to have them"
            )


def check_codes(found: Iterable[Source], layout: str, objective: Mapping) -> None:
    """Raises DataError where a source has a control code and its objective knows none, or the other way round."""
    coded = "coded" in objective and objective["coded"]
    for source in found:
        if coded and not source.code:
            raise DataError(
                f"config.objective.coded = true begins each row with its source's control code, and '{source.spec}' "
                "has none; give it one, such as text:GLOB?code=Books, or train with config.objective.coded = false"
            )
        if source.code and not coded:
            raise DataError(
                f"'{source.spec}' has the control code '{source.code}', which a causal objective with "
                "config.objective.coded = true alone reads; set that, or leave the code out"
            )
        if source.code and layout != "concat":
            raise DataError(
                f"'{source.spec}' has the control code '{source.code}', with which rows of one text each begin; set "
                f"data.layout to concat, not {layout}"
            )


def check_languages(found: Sequence[Source], data: Mapping, objective: Mapping) -> None:
    """Raises DataError where sources, data.languages and a task do not agree on languages."""
    task = corruption.build(objective)
    codes = task.codes
    if codes and codes != tuple(data["languages"]):
        raise DataError(
            f"objective.languages = {codes} are the codes that texts have, and data.languages = "
            f"{tuple(data['languages'])}; name the same languages in both, in one order"
        )
    told = bool(codes) or "languages" in task.features(1, data["length"])
    languages.check(found, data["languages"], told)


def check_stride(stride: int, length: int, layout: str, bare: bool) -> None:
    """Raises DataError where windows of `length` cannot go on by `stride`; `bare` is the objective's."""
    if not 0 < stride <= length:
        raise DataError(
            f"evaluate.stride = {stride} is longer than the window's {length} tokens; set at most that (0 means that)"
        )
    if stride < length and (layout != "concat" or bare):
        why = "and each has an end token of its own that is scored" if bare else f"as those of layout {layout} may not"
        raise DataError(f"evaluate.stride = {stride} lets windows of one text overlap, {why}; set it to 0")


def check_ends(tokenizer: Tokenizer, data: Mapping, report: Callable[[str], None]) -> None:
    """Raises DataError where a layout tells documents apart and the tokenizer has no token between them."""
    if tokenizer.end_id is None and data["layout"] not in WITHOUT_ENDS:
        raise DataError(
            f"data.layout = {data['layout']} tells documents apart, and the tokenizer has no token to separate "
            f"documents, which is to be one of: {', '.join(NAMES['end'])}; choose layout {' or '.join(WITHOUT_ENDS)}"
        )
    if tokenizer.end_id is None:
        report("the tokenizer has no token to separate documents: each goes on where the one before ends")


def check_length(key: str, length: int, objective: Mapping) -> None:
    """Raises DataError where rows of `length`, the value of `key`, have too little room for text, or for a task's."""
    task = corruption.build(objective)
    if task.raw_length(length) < task.least:
        least = next(longer for longer in itertools.count(length) if task.raw_length(longer) >= task.least)
        least = next((longer for longer in range(least, least + LONGER) if _takes(task, longer)), least)
        raise DataError(
            f"{key} = {length} leaves too little room for text in the rows of objective.kind = {objective['kind']}; "
            f"set at least {least}"
        )
    task.check(length)


def _takes(task, length: int) -> bool:
    """Whether a task's settings ask for nothing that rows of `length` cannot hold."""
    try:
        task.check(length)
    except DataError:
        return False
    return True


def store_folder(source: Source, share: float, data: Mapping, root: Path) -> Path:
    """Where a source's token store lies, with `root` as of `store_root`.

    Its name is readable, and another for other splits, shapes or sentences.
    """
    name = re.sub(r"[^\w.]+", "-", source.spec).strip("-.")[:40]
    cut = [f"sentences={data['sentences']}"] if data["sentences"] else []
    whole = " ".join(map(str, (source.spec, share, *data["image"], *cut)))
    return (
        store_root(data, root)
        / f"{name}-{hashlib.blake2b(whole.encode(errors='surrogatepass'), digest_size=4).hexdigest()}"
    )


def store_root(data: Mapping, root: Path) -> Path:
    """The folder of all token stores: `root`, where `data.store` names none."""
    return at(data["store"] or root)


def _check_mixing(data: Mapping, count: int) -> None:
    mixing = data["weights"], data["temperature"], data["cap"]
    if data["layout"] != "stream":
        mixing_weights([(1, 1)] * count, *mixing)
    elif len(mixing[0]) or mixing[1:] != (1, 0):
        raise DataError("data.layout = stream does not mix; unset data.weights, data.temperature and data.cap")


def _check_there(source: Source, name: str) -> None:
    """Raises DataError where a source's files are not there, or the first of its records is not as it is named."""
    try:
        source.files()
    except DataError as error:
        of_recipe = re.match(rf"(text|images|parallel):data/|tfds:({'|'.join(SETS)})\b", source.spec)
        raise DataError(f"data.{name}: {error}{RECIPES if of_recipe else ''}") from None
    for span in itertools.islice(source.spans(FIRST), source.records):
        next(source.documents(span), None)


def empty(name: str, data: Mapping, streams: Mapping[str, Stream]) -> str:
    """What to say of a split without a token of text."""
    if documents := streams[name].counts.documents:
        of_text = f"data.{name} = '{data[name]}'" if data.get(name) else f"'{name}'"
        if name == "validation" and not data["validation"]:
            of_text = f"what data.holdout = {data['holdout']} holds out of data.train = '{data['train']}'"
        return (
            f"{of_text} has {documents:,} document{'s' * (documents > 1)}, of whose text the tokenizer makes no token; "
            "give other text"
        )
    if name == "validation" and not data["validation"]:
        documents = streams["train"].counts.documents
        return (
            f"data.holdout = {data['holdout']} holds out none of the {documents} documents of data.train; set "
            "data.validation, give more documents, or begin in another --workdir with a larger data.holdout, or 0"
        )
    if name == "train" and share_of(data) and streams["validation"].bare_tokens:
        held = streams["validation"].counts.documents
        only = "the one document" if held == 1 else f"all {held} documents"
        return (
            f"data.holdout = {data['holdout']} holds out {only} of data.train, so that none is left to train on; give "
            "more documents, set data.validation, or set data.holdout to 0"
        )
    return f"data.{name} = '{data[name]}' has no text; check the source, and that data.holdout is not too large"
