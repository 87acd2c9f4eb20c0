"""Building a token store: parts in parallel, each written whole or not at all, so that a killed build goes on."""

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path

from input_pipeline.away import hurry, passes
from input_pipeline.errors import DataError
from input_pipeline.files import locked, remove_partial, write_json, written_under
from input_pipeline.sources.readers import is_compressed
from input_pipeline.sources.sources import File, Source, told_of_text
from input_pipeline.token_store import parts
from input_pipeline.token_store.parts import Job
from input_pipeline.token_store.store import FORMAT, MANIFEST, READ, SPLITS, Store, token_dtype
from input_pipeline.token_store.workers import Workers, processes
from input_pipeline.tokenizers.base import Tokenizer


def open_or_build(
    source: Source,
    tokenizer: Tokenizer,
    saved: Path,
    folder: Path,
    holdout: float,
    report: Callable[[str], None],
    read_all: bool = False,
    sentences: str = "",
    workers: Workers | None = None,
) -> Store:
    """The store of `source` in `folder`, built if it is not there; `saved` is the tokenizer's folder.

    `workers` make its parts: None means the processes of this machine. The store is the same, whoever they are.
    Several processes may call this at once: one builds, the others wait. Errors: DataError where the store
    was made from other text or with another tokenizer, where its files are damaged, and for all that is wrong with the
    text. The bytes of a store beyond `store.READ` are compared with their checksums only where `read_all` asks for it.
    """
    with written_under(folder, "data.store"):
        store = Store.open(folder)
        if store is None:
            with locked(folder / "lock", lambda: report(f"waiting for another process to tokenise {source.spec}")):
                store = Store.open(folder) or _build(
                    source, tokenizer, saved, folder, holdout, report, sentences, workers or processes()
                )
    if store is None:
        raise DataError(f"the token store {folder} was made and is gone; start the same command again")
    if store.manifest["tokenizer"] != tokenizer.fingerprint:
        raise DataError(
            f"the token store {folder} was made with another tokenizer (fingerprint {store.manifest['tokenizer']}, "
            f"now {tokenizer.fingerprint}); point data.store to a new folder, or delete this one"
        )
    _check_unchanged(source, store, report)
    with written_under(folder, "data.store"):
        if read_all or store.bytes <= READ:
            store.check_content()
    return store


def _build(source, tokenizer, saved, folder, holdout, report, sentences, workers: Workers) -> Store:
    remove_partial(folder)
    try:
        files = source.files()
    except DataError as error:
        if not (folder / MANIFEST).exists():
            raise
        raise DataError(
            f"the token store {folder} is of an earlier format and has to be made again, but its text is not there "
            f"({error}); bring the text back, or use the version that made the store"
        ) from None
    cut = list(parts.divided(source, files))
    plan = {
        "format": FORMAT,
        "source": source.spec,
        "origin": source.origin,
        "holdout": holdout,
        "tokenizer": tokenizer.fingerprint,
        "dtype": token_dtype(tokenizer.vocab_size).str,
        "end": tokenizer.end_id is not None,
        "sentences": sentences,
        "fields": list(source.fields),
        "files": [list(file) for file in files],
    }
    if (folder / MANIFEST).exists():
        report(f"the token store of {source.spec} is of an earlier format: tokenising again")
        (folder / MANIFEST).unlink()
    begun = folder / "plan.json"
    if begun.is_file() and parts.noted(begun) != plan:
        report(f"{source.spec} changed since its token store was begun: starting again")
    if not begun.is_file() or parts.noted(begun) != plan:
        for leftover in [path for path in folder.iterdir() if path.name[0].isdigit()]:
            leftover.unlink()
    write_json(begun, plan)
    jobs = [
        Job(source, spans, number, saved, tokenizer.fingerprint, folder, holdout, sentences)
        for number, spans in enumerate(cut)
    ]
    records = {job.number: record for job in jobs if (record := parts.recorded(job))}
    missing = [job for job in jobs if job.number not in records]
    if told := told_of_text(source, files):
        report(told)
    _run(missing, records, report, workers)
    if not sum(record["splits"][split][0] for record in records.values() for split in SPLITS):
        raise DataError(f"'{source.spec}' holds no text; check the path and that its files are not empty")
    write_json(folder / MANIFEST, plan | {"parts": [records[job.number] for job in jobs]})
    for job in jobs:
        parts.record_of(job).unlink()
    begun.unlink()
    return Store.open(folder)


def _run(jobs: list[Job], records: dict[int, dict], report, workers: Workers) -> None:
    """Has the jobs done, and puts their records into `records`."""
    total = len(jobs) + len(records)
    if records:
        report(f"{len(records)} of {total} parts are there already")
    if not jobs:
        return
    spec, begun, said, tokens = jobs[0].source.spec, time.monotonic(), 0.0, 0
    spans = [span for job in jobs for span in job.spans]
    size = sum(span.size for span in spans)
    kilobytes = f"{math.ceil(size / 1e3)} kB" if size >= 1e3 else f"{size} bytes"
    amount = f"{size / 1e6:,.1f} MB" if size >= 1e6 else kilobytes
    compressed = ", compressed" * all(is_compressed(span.path) for span in spans)
    report(f"tokenising {spec}: {len(jobs)} part{'s' * (len(jobs) > 1)} of {amount}{compressed}")
    with contextlib.closing(workers(jobs)) as done:
        for number, record in done:
            records[number] = record
            tokens += sum(record["splits"][split][1] for split in SPLITS)
            elapsed = time.monotonic() - begun
            if elapsed - said > 5:
                said = elapsed
                report(f"tokenising {spec}: {len(records)} of {total} parts done, {tokens / elapsed:,.0f} tokens/s")


def _check_unchanged(source: Source, store: Store, report) -> None:
    """Raises DataError if the text is no longer what the store was made from.

    Names and sizes of all files tell, and where only a file's time differs, as after a copy, its content.
    A store outlives its source: without the files, or under another interpreter's library, it is used as it is.
    """
    if store.manifest["origin"] != source.origin:
        report(f"using the token store of {source.spec} made from {store.manifest['origin']}")
        return
    try:
        with hurry():  # what is made already waits for nobody
            files = source.files()
    except (DataError, OSError) as error:
        if not isinstance(error, DataError) and not passes(error):
            raise
        report(f"using the token store of {source.spec}, whose files are not here")
        return
    was, now = ({file.name: file for file in some} for some in (map(File._make, store.manifest["files"]), files))
    for name in sorted(was.keys() | now.keys()):
        if name not in was or name not in now or was[name].size != now[name].size:
            what = "is new" if name not in was else "is gone" if name not in now else "has another size"
            raise _changed(source, store, name, what)
    touched = {name for name in now if was[name].changed != now[name].changed}
    if not touched:
        return
    have = "1 file has" if len(touched) == 1 else f"{len(touched)} files have"
    report(f"{source.spec}: {have} a new time; comparing content with the token store")
    for spans, record in zip(parts.divided(source, files), store.manifest["parts"], strict=True):
        names = {span.name for span in spans}
        if names <= now.keys() - touched:  # names of TFDS spans are no files
            continue
        if parts.text_digest(source, spans, store.manifest["sentences"]) != record["digest"]:
            raise _changed(source, store, " or ".join(sorted(names & touched or touched)), "has other content")
    with contextlib.suppress(OSError), hurry(), locked(store.folder / "lock", lambda: None):  # else compared each time
        write_json(store.folder / MANIFEST, store.manifest | {"files": [list(file) for file in files]})


def _changed(source: Source, store: Store, name: str, what: str) -> DataError:
    undo = "move it away" if what == "is new" else "restore it"
    return DataError(
        f"'{source.spec}' changed since its token store was made: {name} {what}; {undo}, "
        f"point data.store to a new folder, or delete {store.folder} to tokenise again"
    )
