"""Building a token store: parts in parallel, each written whole or not at all, so that a killed build goes on."""

import contextlib
import functools
import gc
import hashlib
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from input_pipeline.errors import DataError
from input_pipeline.files import locked, read_json, remove_partial, write_json, written_under
from input_pipeline.processes import cores, die_with_parent, workers_start
from input_pipeline.sources import readers
from input_pipeline.sources.readers import Span, raw
from input_pipeline.sources.sources import File, Source
from input_pipeline.store.store import FIELDS, FORMAT, MANIFEST, READ, SENTENCES, SPLITS, Form, Store, token_dtype
from input_pipeline.store.writer import Piece, writing
from input_pipeline.tokenizers import saved
from input_pipeline.tokenizers.tokenizer import Tokenizer

PART_BYTES = 1 << 20  # least size of a part
PARTS = 512  # about as many parts at most: what a killed build loses, against files to open
BATCH = 1 << 18  # characters that go to the tokenizer at once


class Job(NamedTuple):
    """One part's work, as a worker process gets it."""

    source: Source
    spans: tuple[Span, ...]
    number: int
    tokenizer: Path  # its folder
    fingerprint: str
    folder: Path
    holdout: float
    sentences: str  # how its documents are cut into sentences, as data.sentences has it; empty: not at all


def open_or_build(
    source: Source,
    tokenizer: Tokenizer,
    saved: Path,
    folder: Path,
    holdout: float,
    report: Callable[[str], None],
    read_all: bool = False,
    sentences: str = "",
) -> Store:
    """The store of `source` in `folder`, built if it is not there; `saved` is the tokenizer's folder.

    Several processes may call this at once: one builds, the others wait. Errors: DataError where the store
    was made from other text or with another tokenizer, where its files are damaged, and for all that is wrong with the
    text. The bytes of a store beyond `store.READ` are compared with their checksums only where `read_all` asks for it.
    """
    with written_under(folder, "data.store"):
        store = Store.open(folder)
        if store is None:
            with locked(folder / "lock", lambda: report(f"waiting for another process to tokenise {source.spec}")):
                store = Store.open(folder) or _build(source, tokenizer, saved, folder, holdout, report, sentences)
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


def _build(source, tokenizer, saved, folder, holdout, report, sentences) -> Store:
    remove_partial(folder)
    files = source.files()
    parts = list(_parts(source, files))
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
    begun = folder / "plan.json"
    if begun.is_file() and _noted(begun) != plan:
        report(f"{source.spec} changed since its token store was begun: starting again")
        for leftover in folder.glob("[0-9]*"):
            leftover.unlink()
    write_json(begun, plan)
    jobs = [
        Job(source, spans, number, saved, tokenizer.fingerprint, folder, holdout, sentences)
        for number, spans in enumerate(parts)
    ]
    records = {job.number: record for job in jobs if (record := _noted(_record(job)))}
    try:
        _run([job for job in jobs if job.number not in records], records, sum(f.size for f in files), report)
    except BrokenProcessPool:
        raise DataError(
            f"a process that tokenised '{source.spec}' was killed, perhaps for want of memory; run again: "
            "what it had finished is kept"
        ) from None
    if not sum(record["splits"][split][0] for record in records.values() for split in SPLITS):
        raise DataError(f"'{source.spec}' holds no text; check the path and that its files are not empty")
    write_json(folder / MANIFEST, plan | {"parts": [records[job.number] for job in jobs]})
    for job in jobs:
        _record(job).unlink()
    begun.unlink()
    return Store.open(folder)


def _parts(source: Source, files: list[File]) -> Iterator[tuple[Span, ...]]:
    """The spans, gathered into parts of similar size; the same for the same files."""
    target = max(PART_BYTES, sum(file.size for file in files) // PARTS)
    part, size = [], 0
    for span in source.spans(target):
        part.append(span)
        size += span.size
        if size >= target:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def _record(job: Job) -> Path:
    """Written last of a part's files: the part is done if it is there."""
    return job.folder / f"{job.number:05d}.json"


def _noted(path: Path) -> dict | None:
    """What a build that was cut noted in `path`; None where nothing is there, or not what was written."""
    try:
        return read_json(path)
    except (FileNotFoundError, ValueError):
        return None


def _run(jobs: list[Job], records: dict[int, dict], size: int, report) -> None:
    """Does the jobs, in processes where that pays, and puts their records into `records`."""
    total = len(jobs) + len(records)
    if records:
        report(f"{len(records)} of {total} parts are there already")
    if not jobs:
        return
    spec, begun, said, tokens = jobs[0].source.spec, time.monotonic(), 0.0, 0
    workers = min(len(jobs), cores())
    kilobytes = f"{math.ceil(size / 1e3)} kB" if size >= 1e3 else f"{size} bytes"
    amount = f"{size / 1e6:,.1f} MB" if size >= 1e6 else kilobytes
    report(f"tokenising {spec}: {len(jobs)} part{'s' * (len(jobs) > 1)} of {amount}")
    with ExitStack() as stack:
        if workers == 1 or size < 4 * PART_BYTES:  # starting processes takes half a second
            done = ((job.number, encode_part(job)) for job in jobs)
        else:
            context = multiprocessing.get_context("spawn")
            with workers_start():
                pool = stack.enter_context(ProcessPoolExecutor(workers, context, initializer=die_with_parent))
                stack.callback(pool.shutdown, cancel_futures=True)
                futures = {pool.submit(encode_part, job): job.number for job in jobs}
            done = ((futures[future], future.result()) for future in as_completed(futures))
        for number, record in done:
            records[number] = record
            tokens += sum(record["splits"][split][1] for split in SPLITS)
            elapsed = time.monotonic() - begun
            if elapsed - said > 5:
                said = elapsed
                report(f"tokenising {spec}: {len(records)} of {total} parts done, {tokens / elapsed:,.0f} tokens/s")


@functools.lru_cache(1)
def _tokenizer(folder: Path, fingerprint: str) -> Tokenizer:
    """Opened once by each worker; the fingerprint tells a new one in the same folder."""
    return saved.open_folder(folder)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Thousands of small objects and no cycles: looking for these would take a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_no_collection()
def encode_part(job: Job) -> dict:
    """Writes one part's files and returns its record."""
    tokenizer = _tokenizer(job.tokenizer, job.fingerprint)
    form = Form(token_dtype(tokenizer.vocab_size), tokenizer.end_id is not None, bool(job.sentences), job.source.fields)
    digest = hashlib.blake2b(digest_size=16)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(writing(job.folder, job.number, split, form, tokenizer.end_id)) for split in SPLITS
        ]
        for pieces in _batches(job.source, job.spans, job.sentences):
            data = [raw(piece.text) for piece in pieces]
            digest.update(b"\0".join(data))
            encoded = tokenizer.encode_all([piece.text for piece in pieces])
            for piece, text, ids in zip(pieces, data, encoded, strict=True):
                if piece.place is not None:
                    writer = writers[piece.place < job.holdout]
                writer.add(piece, len(text), ids)
    record = {
        "digest": digest.hexdigest(),
        "splits": {writer.split: list(writer.total) for writer in writers},
        "sentences": {writer.split: writer.sentences for writer in writers},
        "checksums": {writer.split: writer.checksums for writer in writers},
    }
    write_json(_record(job), record)
    return record


def _batches(source: Source, spans: Iterable[Span], sentences: str) -> Iterator[list[Piece]]:
    """The documents' pieces, some at a time."""
    pieces, size, cut = [], 0, SENTENCES if sentences else ""
    for span in spans:
        for place, texts in source.documents(span):
            for chunks in texts:
                for text in readers.sentences(chunks, span) if sentences else chunks:
                    pieces.append(Piece(place, text, cut))
                    place, size = None, size + len(text)
                    if size > BATCH:
                        yield pieces
                        pieces, size = [], 0
                if source.fields:
                    pieces.append(Piece(place, "", FIELDS))
                    place = None
    yield pieces


def _check_unchanged(source: Source, store: Store, report) -> None:
    """Raises DataError if the text is no longer what the store was made from.

    Names and sizes of all files tell, and where only a file's time differs, as after a copy, its content.
    A store outlives its source: without the files, or under another interpreter's library, it is used as it is.
    """
    if store.manifest["origin"] != source.origin:
        report(f"using the token store of {source.spec} made from {store.manifest['origin']}")
        return
    try:
        files = source.files()
    except DataError:
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
    for spans, record in zip(_parts(source, files), store.manifest["parts"], strict=True):
        names = {span.name for span in spans}
        if names <= now.keys() - touched:  # names of TFDS spans are no files
            continue
        digest = hashlib.blake2b(digest_size=16)
        for pieces in _batches(source, spans, store.manifest["sentences"]):
            digest.update(b"\0".join(raw(piece.text) for piece in pieces))
        if digest.hexdigest() != record["digest"]:
            raise _changed(source, store, " or ".join(sorted(names & touched or touched)), "has other content")
    with contextlib.suppress(OSError), locked(store.folder / "lock", lambda: None):  # read-only: compared each time
        write_json(store.folder / MANIFEST, store.manifest | {"files": [list(file) for file in files]})


def _changed(source: Source, store: Store, name: str, what: str) -> DataError:
    return DataError(
        f"'{source.spec}' changed since its token store was made: {name} {what}; restore it, "
        f"point data.store to a new folder, or delete {store.folder} to tokenise again"
    )
