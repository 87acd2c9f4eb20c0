"""One part of a token store: a function of its source's spans alone, whoever makes it, on this machine or another."""

import functools
import gc
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from input_pipeline.files import read_json, write_json
from input_pipeline.sources import readers
from input_pipeline.sources.readers import Document, Span, raw
from input_pipeline.sources.sources import File, Source
from input_pipeline.token_store.store import FIELDS, SENTENCES, SPLITS, Form, token_dtype
from input_pipeline.token_store.writer import Piece, writing
from input_pipeline.tokenizers import saved
from input_pipeline.tokenizers.base import Tokenizer

BYTES = 1 << 20  # least size of a part
MOST = 512  # about as many parts at most: what a killed build loses, against files to open
BATCH = 1 << 18  # characters that go to the tokenizer at once


class Job(NamedTuple):
    """One part's work, as whoever does it gets it."""

    source: Source
    spans: tuple[Span, ...]
    number: int
    tokenizer: Path  # its folder
    fingerprint: str
    folder: Path
    holdout: float
    sentences: str  # how its documents are cut into sentences, as data.sentences has it; empty: not at all


def divided(source: Source, files: list[File]) -> Iterator[tuple[Span, ...]]:
    """The spans of a source, gathered into parts of similar size; the same for the same files."""
    target = max(BYTES, sum(file.size for file in files) // MOST)
    part, size = [], 0
    for span in source.spans(target):
        part.append(span)
        size += span.size
        if size >= target:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def record_of(job: Job) -> Path:
    """Written last of a part's files: the part is done if it is there."""
    return job.folder / f"{job.number:05d}.json"


def recorded(job: Job) -> dict | None:
    """The record of a part that is done; None of one that is not."""
    return noted(record_of(job))


def noted(path: Path) -> dict | None:
    """What a build that was cut noted in `path`; None where nothing is there, or not what was written."""
    try:
        return read_json(path)
    except (FileNotFoundError, ValueError):
        return None


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
def encode(job: Job) -> dict:
    """Writes one part's files and returns its record. Errors: DataError for what is wrong with the text; OSError."""
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
    write_json(record_of(job), record)
    return record


def text_digest(source: Source, spans: Iterable[Span], sentences: str) -> str:
    """What the record of a part has of its text, from the source as it is now."""
    digest = hashlib.blake2b(digest_size=16)
    for pieces in _batches(source, spans, sentences):
        digest.update(b"\0".join(raw(piece.text) for piece in pieces))
    return digest.hexdigest()


def _batches(source: Source, spans: Iterable[Span], sentences: str) -> Iterator[list[Piece]]:
    """The documents' pieces, some at a time."""
    pieces, size, cut = [], 0, SENTENCES if sentences else ""
    for place, texts in documents(source, spans, sentences):
        for chunks in texts:
            for text in chunks:
                pieces.append(Piece(place, text, cut))
                place, size = None, size + len(text)
                if size > BATCH:
                    yield pieces
                    pieces, size = [], 0
            if source.fields:
                pieces.append(Piece(place, "", FIELDS))
                place = None
    yield pieces


def documents(source: Source, spans: Iterable[Span], sentences: str) -> Iterator[Document]:
    """The documents of spans, in order, as they are tokenised: in chunks, or with `sentences` in these."""
    for span in spans:
        for place, texts in source.documents(span):
            yield Document(place, tuple(readers.sentences(chunks, span) for chunks in texts) if sentences else texts)
