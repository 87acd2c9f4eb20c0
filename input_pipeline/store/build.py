"""Building a token store: parts in parallel, each written whole or not at all, so that a killed build goes on."""

import contextlib
import functools
import gc
import hashlib
import math
import multiprocessing
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.files import locked, read_json, remove_partial, replaced, write_json, written_under
from input_pipeline.processes import cores, die_with_parent, workers_start
from input_pipeline.sources.readers import Span, raw
from input_pipeline.sources.sources import File, Source
from input_pipeline.store.store import (
    FILES,
    FORMAT,
    MANIFEST,
    NOTHING,
    READ,
    SPLITS,
    Counts,
    Store,
    part_file,
    token_dtype,
)
from input_pipeline.tokenizers import folder as tokenizer_folder
from input_pipeline.tokenizers.tokenizer import Tokenizer

PART_BYTES = 1 << 20  # least size of a part
PARTS = 512  # about as many parts at most: what a killed build loses, against files to open
BATCH = 1 << 18  # characters that go to the tokenizer at once
FLUSH = 1 << 20  # tokens held before they are written


class Job(NamedTuple):
    """One part's work, as a worker process gets it."""

    source: Source
    spans: tuple[Span, ...]
    number: int
    tokenizer: Path  # its folder
    fingerprint: str
    folder: Path
    holdout: float


def open_or_build(
    source: Source,
    tokenizer: Tokenizer,
    saved: Path,
    folder: Path,
    holdout: float,
    report: Callable[[str], None],
    read_all: bool = False,
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
                store = Store.open(folder) or _build(source, tokenizer, saved, folder, holdout, report)
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


def _build(source, tokenizer, saved, folder, holdout, report) -> Store:
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
        "files": [list(file) for file in files],
    }
    begun = folder / "plan.json"
    if begun.is_file() and _noted(begun) != plan:
        report(f"{source.spec} changed since its token store was begun: starting again")
        for leftover in folder.glob("[0-9]*"):
            leftover.unlink()
    write_json(begun, plan)
    jobs = [
        Job(source, spans, number, saved, tokenizer.fingerprint, folder, holdout) for number, spans in enumerate(parts)
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
    if records:
        report(f"{len(records)} of {len(records) + len(jobs)} parts are there already")
    if not jobs:
        return
    spec, begun, said, tokens = jobs[0].source.spec, time.monotonic(), 0.0, 0
    workers = min(len(jobs), cores())
    amount = f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{math.ceil(size / 1e3)} kB"
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
                report(f"tokenising {spec}: {len(records)} parts done, {tokens / elapsed:,.0f} tokens/s")


@functools.lru_cache(1)
def _tokenizer(folder: Path, fingerprint: str) -> Tokenizer:
    """Opened once by each worker; the fingerprint tells a new one in the same folder."""
    return tokenizer_folder.open_folder(folder)


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
    digest = hashlib.blake2b(digest_size=16)
    with ExitStack() as stack:
        writers = [stack.enter_context(_writer(job, split, tokenizer)) for split in SPLITS]
        for places, texts in _batches(job.source, job.spans):
            data = [raw(text) for text in texts]
            digest.update(b"\0".join(data))
            for place, text, encoded, ids in zip(places, texts, data, tokenizer.encode_all(texts), strict=True):
                if place is not None:
                    writer = writers[place < job.holdout]
                writer.add(place is not None, text, len(encoded), ids)
    record = {
        "digest": digest.hexdigest(),
        "splits": {writer.split: list(writer.total) for writer in writers},
        "checksums": {writer.split: writer.checksums for writer in writers},
    }
    write_json(_record(job), record)
    return record


def _batches(source: Source, spans: Iterable[Span]) -> Iterator[tuple[list[float | None], list[str | bytes]]]:
    """(places, texts) of documents' chunks, some at a time; no place where a chunk goes on with a document."""
    places, texts, size = [], [], 0
    for span in spans:
        for place, chunks in source.documents(span):
            for text in chunks:
                places.append(place)
                texts.append(text)
                place, size = None, size + len(text)
                if size > BATCH:
                    yield places, texts
                    places, texts, size = [], [], 0
    yield places, texts


@contextmanager
def _writer(job: Job, split: str, tokenizer: Tokenizer) -> Iterator["_Writer"]:
    """Writes one split of one part; its two files appear at the end."""
    with ExitStack() as stack:
        paths = [part_file(job.folder, job.number, split, what) for what in FILES]
        files = [stack.enter_context(open(stack.enter_context(replaced(path)), "wb")) for path in paths]
        writer = _Writer(split, tokenizer, *files)
        yield writer
        writer.flush(last=True)


def word_count(text: str) -> int:
    """Words of a text and ends of its lines, the last one's too, as WikiText is counted (Merity et al. 2016).

    Words are what white space separates. Each line, a blank one too, ends with one token more, the literature's <eos>.
    """
    return len(text.split()) + text.count("\n") + (not text.endswith("\n"))


class _Writer:
    """Gathers documents and writes them a million tokens at a time."""

    def __init__(self, split: str, tokenizer: Tokenizer, tokens: BinaryIO, documents: BinaryIO):
        self.split, self.total = split, NOTHING
        self._end = np.array([] if tokenizer.end_id is None else [tokenizer.end_id], np.int32)
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._files = tokens, documents
        self.checksums = [0, 0]  # CRC-32 of what the two files hold
        self._ids, self._waiting = [], 0
        self._sizes, self._before = [], ""  # of documents; the chunk added last, to tell whether it broke a word

    def add(self, begins: bool, text: str | bytes, size: int, ids: np.ndarray) -> None:
        """Adds the next chunk of a document: its text, bytes and ids."""
        words = word_count(text) if isinstance(text, str) else 0  # an image has none
        if begins:
            self._ids.append(self._end)
            self._sizes.append((len(self._end) + len(ids), size, words))
        else:
            words -= not (self._before[-1:].isspace() or text[:1].isspace())  # one word, which was counted twice
            words -= self._before[-1:] != "\n"  # and where that chunk ended, no line does
            tokens_before, size_before, words_before = self._sizes[-1]
            self._sizes[-1] = (tokens_before + len(ids), size_before + size, words_before + words)
        self._before = text
        self._ids.append(ids)
        self._waiting += len(ids)
        if self._waiting > FLUSH:
            self.flush(last=False)

    def flush(self, last: bool) -> None:
        """Writes what is gathered; of the documents all but the last, which may go on."""
        if self._ids:
            self._write(0, np.concatenate(self._ids).astype(self._dtype))
        done = len(self._sizes) - (not last)
        if done > 0:
            sizes = np.array(self._sizes[:done], "<i8")
            self._write(1, sizes)
            self.total += Counts(done, *map(int, sizes.sum(axis=0)))
        self._ids, self._waiting, self._sizes = [], 0, self._sizes[done:]

    def _write(self, which: int, values: np.ndarray) -> None:
        data = values.data.cast("B")
        self._files[which].write(data)
        self.checksums[which] = zlib.crc32(data, self.checksums[which])


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
    report(f"{source.spec}: {len(touched)} files have a new time; comparing their content with the token store")
    for spans, record in zip(_parts(source, files), store.manifest["parts"], strict=True):
        names = {span.name for span in spans}
        if names <= now.keys() - touched:  # names of TFDS spans are no files
            continue
        digest = hashlib.blake2b(digest_size=16)
        for _, texts in _batches(source, spans):
            digest.update(b"\0".join(map(raw, texts)))
        if digest.hexdigest() != record["digest"]:
            raise _changed(source, store, " or ".join(sorted(names & touched or touched)), "has other content")
    with contextlib.suppress(OSError), locked(store.folder / "lock", lambda: None):  # read-only: compared each time
        write_json(store.folder / MANIFEST, store.manifest | {"files": [list(file) for file in files]})


def _changed(source: Source, store: Store, name: str, what: str) -> DataError:
    return DataError(
        f"'{source.spec}' changed since its token store was made: {name} {what}; restore it, "
        f"point data.store to a new folder, or delete {store.folder} to tokenise again"
    )
