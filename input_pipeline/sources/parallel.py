"""Texts that belong together line by line, in a file for each field: `parallel:data/train.{}.gz?fields=en,de`."""

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from input_pipeline.errors import DataError
from input_pipeline.remote import at
from input_pipeline.sources import readers, records
from input_pipeline.sources.file_sources import File, Source, absolute, named_fields, size_and_time
from input_pipeline.sources.readers import Document, Span

PLACE = "{}"  # of a field's name in the path


@dataclass(frozen=True)
class Parallel(Source):
    """Line i of every file is a text of document i; `fields` are in the order in which an objective takes them."""

    spec: str
    path: str  # absolute, with PLACE in it
    fields: tuple[str, ...]
    records = True

    @classmethod
    def make(cls, spec: str, path: str, options: Mapping[str, str]) -> "Parallel":
        fields = named_fields(spec, options)
        if path.count(PLACE) != 1 or not fields:
            raise DataError(
                f"'{spec}' is to name a file for each field; write {PLACE} once, where their names differ, and the "
                "fields, such as parallel:data/train.{}.gz?fields=en,de for train.en.gz and train.de.gz"
            )
        return cls(spec, absolute(path), fields)

    def _named(self) -> list[str]:
        return [self.path.replace(PLACE, field) for field in self.fields]

    def paths(self) -> list[str]:
        return [path for path in self._named() if _is_file(path)]

    def files(self) -> list[File]:
        for path in self._named():
            if not _is_file(path):
                raise DataError(f"'{self.spec}' reads {path}, which is no file; check the path, with ls {path}")
        return [File(os.path.basename(path), *size_and_time(path)) for path in self._named()]

    def spans(self, target: int) -> Iterator[Span]:
        """One: where a line of one file lies says nothing of where it lies in another."""
        size = sum(size_and_time(path)[0] for path in self._named())
        yield Span(self.path, os.path.basename(self.path), 0, None, size)

    def documents(self, span: Span) -> Iterator[Document]:
        texts = [_lines(path) for path in self._named()]
        for number in itertools.count(1):
            lines = [next(one, None) for one in texts]
            if None in lines:
                break
            pair = dict(zip(self.fields, lines, strict=True))
            yield records.fields_document(pair, f"'{self.spec}', line {number}", self.fields)
        counts = [number - 1 + (line is not None) + sum(1 for _ in one) for line, one in zip(lines, texts, strict=True)]
        if len(set(counts)) > 1:
            found = ", ".join(f"{path} {n:,}" for path, n in zip(self._named(), counts, strict=True))
            raise DataError(
                f"'{self.spec}' has files of different numbers of lines ({found}), so that it cannot be told which "
                "belong together; give files of as many lines"
            )


def _is_file(path: str) -> bool:
    return at(path).is_file()


def _lines(path: str) -> Iterator[str]:
    """The lines of a file, without their ends."""
    for offset, line in readers.lines(Span(path, path, 0, None, 0)):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise readers.undecodable(path, offset + error.start, error.reason) from None
