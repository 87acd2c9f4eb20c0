"""Writing one split of one part of a token store."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from input_pipeline.files import replaced
from input_pipeline.token_store.store import DOCUMENTS, FIELDS, SENTENCES, TOKENS, Counts, Form, part_file

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
        self._ids, self._waiting, self._pieces = [], 0, []
        self._before = ""  # what was added last, to tell whether it broke a word
        self._documents, self._sums = 0, np.zeros((1, 4), np.int64)  # what is written: as a row of `documents` has it

    @property
    def total(self) -> Counts:
        """What has been written."""
        return Counts(self._documents, *self._sums[0, :3].tolist())

    @property
    def sentences(self) -> int:
        return int(self._sums[0, 3])

    def add(self, piece: Piece, size: int, ids: np.ndarray) -> None:
        """Adds the next piece of a document: with its bytes and ids."""
        place, text, ends = piece
        words = word_count(text) if text and isinstance(text, str) else 0  # an image has none
        if place is not None:
            self._ids.append(self._end)
        elif text:
            words -= not (self._before[-1:].isspace() or text[:1].isspace())  # one word, which was counted twice
            words -= self._before[-1:] != "\n"  # and where that piece ended, no line does
        self._before = "\n" if ends else text
        self._ids.append(ids)
        sentence = ends == SENTENCES and len(ids) > 0  # text that gives no ids is none
        self._pieces.append((len(ids), size, words, sentence, place is not None, ends == FIELDS))
        self._waiting += len(ids)
        if self._waiting > FLUSH:
            self._flush()

    def finish(self) -> None:
        """Writes what is left."""
        self._flush()
        if self._documents:
            self._write(DOCUMENTS, self._sums)

    def _flush(self) -> None:
        """Writes what is gathered; of the documents all but the last, which may go on."""
        if not self._pieces:
            return
        pieces = np.array(self._pieces, np.int64)
        begins, fields = pieces[:, 4].astype(bool), pieces[:, 5].astype(bool)
        pieces[begins, 0] += len(self._end)
        sums = np.concatenate([self._sums, self._sums + np.cumsum(pieces[:, :4], axis=0)])  # before and after each
        before, after = sums[:-1], sums[1:]
        self._write(TOKENS, np.concatenate(self._ids).astype(self._form.dtype))
        self._write(DOCUMENTS, before[begins][self._documents == 0 :])
        self._write(SENTENCES, after[pieces[:, 3] > 0, 0])
        self._write(FIELDS, after[fields, 0])
        self._documents += int(begins.sum())
        self._ids, self._waiting, self._pieces, self._sums = [], 0, [], sums[-1:]

    def _write(self, what: str, values: np.ndarray) -> None:
        if values.size:
            data = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data.cast("B")
            self._files[what].write(data)
            self.checksums[what] = zlib.crc32(data, self.checksums[what])
