"""Writing one part of a token store: a function of its source's spans alone, on whatever machine it runs."""

import contextlib
import functools
import gc
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from input_pipeline.io import replace, write_json
from input_pipeline.sources.base import BadRecords, Document, Source, Span, to_bytes
from input_pipeline.sources.text import sentences as split_sentences
from input_pipeline.token_store.store import DOCUMENTS, FIELDS, FORMAT, SENTENCES, SPLITS, TOKENS, Layout, part_file
from input_pipeline.tokenizers import store as tokenizer_store
from input_pipeline.tokenizers.base import Tokenizer

BATCH = 1 << 18  # characters that go to the tokenizer at once
FLUSH = 1 << 20  # tokens in memory before they are written


class Job(NamedTuple):
    """The work of one part, pickled to whatever process does it."""

    source: Source
    spans: tuple[Span, ...]
    number: int
    tokenizer: Path  # its folder
    folder: Path
    settings: dict  # of the store, as `describe` gives them


def describe(source: Source, tokenizer: Tokenizer, holdout: float, sentences: str) -> dict:
    """Settings of a store, as its manifest holds them; `sentences`: how documents are cut (`data.sentences`)."""
    return {
        "format": FORMAT,
        "source": source.spec,
        "origin": source.origin,
        "holdout": holdout,
        "tokenizer": tokenizer.fingerprint,
        "dtype": "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4",
        "end": tokenizer.end_id is not None,
        "sentences": sentences,
        "fields": list(source.fields),
    }


class Piece(NamedTuple):
    """A unit of tokenisation: a chunk of a document, or a sentence."""

    place: float | None  # of the document that it begins; None if it continues one
    text: str | bytes
    ends: str = ""  # SENTENCES or FIELDS: what ends with it


def record_path(job: Job) -> Path:
    """Path of a part's record, which is written last: the part is done if it exists."""
    return job.folder / f"{job.number:05d}.json"


@functools.lru_cache(1)
def _tokenizer(folder: Path, fingerprint: str) -> Tokenizer:
    """Opened once by each worker; a new tokenizer in the same folder has another fingerprint."""
    return tokenizer_store.open_folder(folder)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Thousands of small objects and no cycles: garbage collection would take a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_no_collection()
def encode(job: Job) -> dict:
    """Writes one part's files and returns its record. Errors: DataError for unusable text; OSError."""
    tokenizer, layout = _tokenizer(job.tokenizer, job.settings["tokenizer"]), Layout.of(job.settings)
    digest, bad = hashlib.blake2b(digest_size=16), BadRecords()
    with contextlib.ExitStack() as stack:
        writers = [Writer(job, split, layout, tokenizer.end_id, stack) for split in SPLITS]
        for pieces in _batches(job.source, job.spans, job.settings["sentences"], bad):
            data = [to_bytes(piece.text) for piece in pieces]
            # Separated, since pieces "a", "bc" give other ids than "ab", "c".
            digest.update(b"\0".join(data))
            encoded = tokenizer.encode_all([piece.text for piece in pieces])
            for piece, text, ids in zip(pieces, data, encoded, strict=True):
                # The pieces that continue a document go where its first piece went.
                if piece.place is not None:
                    writer = writers[piece.place < job.settings["holdout"]]
                writer.add(piece, len(text), ids)
        for writer in writers:
            writer.finish()
    record = {
        "digest": digest.hexdigest(),
        "splits": {writer.split: [writer.documents, *writer.sums[0, :3].tolist()] for writer in writers},
        "sentences": {writer.split: int(writer.sums[0, 3]) for writer in writers},
        "checksums": {writer.split: writer.checksums for writer in writers},
    }
    record |= {"bad": [bad.count, bad.first]} if bad.count else {}
    write_json(record_path(job), record)
    return record


def text_digest(source: Source, spans: Iterable[Span], sentences: str) -> str:
    """The digest that a part's record would have for the source's present text."""
    digest = hashlib.blake2b(digest_size=16)
    for pieces in _batches(source, spans, sentences):
        digest.update(b"\0".join(to_bytes(piece.text) for piece in pieces))
    return digest.hexdigest()


def _batches(
    source: Source, spans: Iterable[Span], sentences: str, bad: BadRecords | None = None
) -> Iterator[list[Piece]]:
    """Pieces of the documents, about `BATCH` characters at a time."""
    pieces, size, ends = [], 0, SENTENCES if sentences else ""
    for place, texts, _ in documents(source, spans, sentences, bad):
        for chunks in texts:
            for text in chunks:
                # Only a document's first piece has its place; the others continue it.
                pieces.append(Piece(place, text, ends))
                place, size = None, size + len(text)
                if size > BATCH:
                    yield pieces
                    pieces, size = [], 0
            if source.fields:
                pieces.append(Piece(place, "", FIELDS))
                place = None
    yield pieces


def documents(
    source: Source, spans: Iterable[Span], sentences: str, bad: BadRecords | None = None
) -> Iterator[Document]:
    """The documents of spans, in order, in chunks or, with `sentences`, in sentences; `bad` counts skipped records."""
    for span in spans:
        for place, texts, _ in source.good_documents(span, bad):
            yield Document(place, tuple(split_sentences(chunks) for chunks in texts) if sentences else texts)


def word_count(text: str) -> int:
    """Whitespace-separated words of a text plus its line ends, as WikiText is counted (Merity et al. 2016).

    Each line, also a blank one and the last, ends with one more token, the literature's <eos>.
    """
    return len(text.split()) + text.count("\n") + (not text.endswith("\n"))


class Writer:
    """Collects documents of one split of a part and writes them a million tokens at a time.

    Its files appear when the `stack` that it enters them into ends without an error.
    """

    def __init__(self, job: Job, split: str, layout: Layout, end_id: int | None, stack: contextlib.ExitStack):
        self.split, self._dtype, self._files = split, layout.dtype, {}
        for kind in layout.files:
            partial = stack.enter_context(replace(part_file(job.folder, job.number, split, kind)))
            self._files[kind] = stack.enter_context(partial.open("wb"))
        self.checksums = dict.fromkeys(layout.files, 0)  # CRC-32 of each file
        self._end = np.array([] if end_id is None else [end_id], np.int32)
        self._ids, self._pending, self._pieces = [], 0, []
        self._before = ""  # the last text, to tell whether it broke a word
        # Documents written; [1, 4] sums of tokens, bytes, words and sentences, as a row of the file `documents`.
        self.documents, self.sums = 0, np.zeros((1, 4), np.int64)

    def add(self, piece: Piece, size: int, ids: np.ndarray) -> None:
        """Adds the next piece of a document, of `size` bytes, with its ids."""
        place, text, ends = piece
        words = word_count(text) if text and isinstance(text, str) else 0  # an image has none
        if place is not None:
            self._ids.append(self._end)
        elif text:
            # A word that the pieces' boundary breaks was counted twice, and a line that it breaks as two lines.
            words -= not (self._before[-1:].isspace() or text[:1].isspace())
            words -= self._before[-1:] != "\n"
        self._before = "\n" if ends else text
        self._ids.append(ids)
        sentence = ends == SENTENCES and len(ids) > 0  # text without ids is no sentence
        self._pieces.append((len(ids), size, words, sentence, place is not None, ends == FIELDS))
        self._pending += len(ids)
        if self._pending > FLUSH:
            self._flush()

    def finish(self) -> None:
        """Writes the rest."""
        self._flush()
        if self.documents:
            self._write(DOCUMENTS, self.sums)

    def _flush(self) -> None:
        """Writes what is in memory; of `documents` all rows but the last, whose document may continue."""
        if not self._pieces:
            return
        pieces = np.array(self._pieces, np.int64)
        begins, fields = pieces[:, 4].astype(bool), pieces[:, 5].astype(bool)
        # An end token precedes its document.
        pieces[begins, 0] += len(self._end)
        # Sums before and after each piece.
        sums = np.concatenate([self.sums, self.sums + np.cumsum(pieces[:, :4], axis=0)])
        before, after = sums[:-1], sums[1:]
        self._write(TOKENS, np.concatenate(self._ids).astype(self._dtype))
        # The sums before a document begins are those at the end of the one before it; the first has none before it.
        self._write(DOCUMENTS, before[begins][self.documents == 0 :])
        self._write(SENTENCES, after[pieces[:, 3] > 0, 0])
        self._write(FIELDS, after[fields, 0])
        self.documents += int(begins.sum())
        self._ids, self._pending, self._pieces, self.sums = [], 0, [], sums[-1:]

    def _write(self, kind: str, values: np.ndarray) -> None:
        if values.size:
            data = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data.cast("B")
            self._files[kind].write(data)
            self.checksums[kind] = zlib.crc32(data, self.checksums[kind])
