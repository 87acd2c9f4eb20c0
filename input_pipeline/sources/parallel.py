"""Texts that belong together line by line, one file per field: `parallel:data/train.{}.gz?fields=en,de`."""

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from input_pipeline.errors import DataError
from input_pipeline.io import info, open_path
from input_pipeline.sources import jsonl, text
from input_pipeline.sources.base import Document, File, Source, Span, absolute, named_fields

PLACEHOLDER = "{}"  # a field's name in the path


@dataclass(frozen=True)
class Parallel(Source):
    """Line i of every file is a text of document i; `fields` are in the order in which an objective takes them."""

    spec: str
    path: str  # absolute, with PLACEHOLDER
    fields: tuple[str, ...]
    records = True

    @classmethod
    def make(cls, spec: str, path: str, options: Mapping[str, str]) -> "Parallel":
        fields = named_fields(spec, options)
        if path.count(PLACEHOLDER) != 1 or not fields:
            raise DataError(f"'{spec}': name a file per field, such as parallel:train.{PLACEHOLDER}.gz?fields=en,de.")
        return cls(spec, absolute(path), fields)

    def _names(self) -> list[str]:
        return [self.path.replace(PLACEHOLDER, field) for field in self.fields]

    def paths(self) -> list[str]:
        return [path for path in self._names() if open_path(path).is_file()]

    def files(self) -> list[File]:
        for path in self._names():
            if not open_path(path).is_file():
                raise DataError(f"'{self.spec}': {path} is no file. Check the path.")
        return [File(os.path.basename(path), *info(open_path(path))) for path in self._names()]

    def spans(self, target: int) -> Iterator[Span]:
        """One span: a line's offset in one file says nothing about its offset in another."""
        size = sum(info(open_path(path)).size for path in self._names())
        yield Span(self.path, os.path.basename(self.path), 0, None, size)

    def documents(self, span: Span) -> Iterator[Document]:
        for number, lines in enumerate(itertools.zip_longest(*map(_lines, self._names())), start=1):
            if None in lines:
                shorter = self._names()[lines.index(None)]
                raise DataError(f"'{self.spec}': {shorter} has no line {number}. Give files of as many lines each.")
            pair = dict(zip(self.fields, lines, strict=True))
            yield jsonl.fields_document(pair, f"'{self.spec}', line {number}", self.fields)


def _lines(path: str) -> Iterator[str]:
    """The lines of a file, without their ends."""
    for offset, line in text.lines(Span(path, path, 0, None, 0)):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise text.not_utf8(path, offset + error.start) from None
