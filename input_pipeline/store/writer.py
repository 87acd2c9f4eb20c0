"""Writing one split of one part of a token store."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from input_pipeline.files import replaced
from input_pipeline.store.store import DOCUMENTS, FIELDS, SENTENCES, TOKENS, Counts, Form, part_file

FLUSH = 1 << 20  # tokens held before they are written


class Piece(NamedTuple):
    """What is tokenised at once: a chunk of a document, or a sentence."""

    place: float | None  # of the document that it begins; None where it goes on with one
    text: str | bytes
    ends: str = ""  # SENTENCES or FIELDS: what ends with it


def word_count(text: str) -> int:
    """Words of a text and ends of its lines, the last one's too, as WikiText is counted (Merity et al. 2016).

    Words are what white space separates. Each line, a blank one too, ends with one token more, the literature's <eos>.
    """
    return len(text.split()) + text.count("\n") + (not text.endswith("\n"))


@contextlib.contextmanager
def writing(folder: Path, number: int, split: str, form: Form, end_id: int | None) -> Iterator["Writer"]:
    """Writes one split of one part; its files appear at the end."""
    with contextlib.ExitStack() as stack:
        files = {
            what: stack.enter_context(open(stack.enter_context(replaced(part_file(folder, number, split, what))), "wb"))
            for what in form.files
        }
        writer = Writer(split, form, end_id, files)
        yield writer
        writer.finish()


class Writer:
    """Gathers documents and writes them a million tokens at a time."""

    def __init__(self, split: str, form: Form, end_id: int | None, files: dict[str, BinaryIO]):
        self.split, self.checksums = split, dict.fromkeys(files, 0)  # CRC-32 of what the files hold
        self._form, self._files = form, files
        self._end = np.array([] if end_id is None else [end_id], np.int32)
        self._documents = self._tokens = self._bytes = self._words = self.sentences = 0
        self._ids, self._flushed, self._before = [], 0, ""  # what was added last, to tell whether it broke a word
        self._ends = {what: [] for what in files}

    @property
    def total(self) -> Counts:
        """What has been added."""
        return Counts(self._documents, self._tokens, self._bytes, self._words)

    def add(self, piece: Piece, size: int, ids: np.ndarray) -> None:
        """Adds the next piece of a document: with its bytes and ids."""
        text = piece.text
        words = word_count(text) if isinstance(text, str) and text else 0  # an image has none
        if piece.place is not None:
            self._end_document()
            self._documents += 1
            self._ids.append(self._end)
            self._tokens += len(self._end)
        elif text:
            words -= not (self._before[-1:].isspace() or text[:1].isspace())  # one word, which was counted twice
            words -= self._before[-1:] != "\n"  # and where that piece ended, no line does
        self._before = "\n" if piece.ends else text
        self._ids.append(ids)
        self._tokens += len(ids)
        self._bytes += size
        self._words += words
        if piece.ends == FIELDS:
            self._ends[FIELDS].append(self._tokens)
        elif piece.ends and len(ids):  # text that gives no ids is no sentence
            self._ends[SENTENCES].append(self._tokens)
            self.sentences += 1
        if self._tokens - self._flushed > FLUSH:
            self._flush()

    def _end_document(self) -> None:
        if self._documents:
            self._ends[DOCUMENTS].append((self._tokens, self._bytes, self._words, self.sentences))

    def finish(self) -> None:
        """Writes what is left."""
        self._end_document()
        self._flush()

    def _flush(self) -> None:
        if self._ids:
            self._write(TOKENS, np.concatenate(self._ids).astype(self._form.dtype))
        for what, ends in self._ends.items():
            if ends:
                self._write(what, np.array(ends, "<i8"))
        self._ids, self._flushed, self._ends = [], self._tokens, {what: [] for what in self._files}

    def _write(self, what: str, values: np.ndarray) -> None:
        data = values.data.cast("B")
        self._files[what].write(data)
        self.checksums[what] = zlib.crc32(data, self.checksums[what])
