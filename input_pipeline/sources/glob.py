"""Text, records, tables or images in the files that match a glob."""

import dataclasses
import functools
import glob
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from input_pipeline.errors import DataError
from input_pipeline.io import FileInfo, glob_store, info, is_remote
from input_pipeline.sources import annotated, images, records, tables, text
from input_pipeline.sources.base import BadRecord, Document, File, Source, Span, absolute, hash_to_unit

READERS = {  # by the options document and line_ends
    ("file", "kept"): text.whole_file,
    ("file", "dropped"): text.joined_file,
    ("line", "kept"): text.line_documents,
    ("blank_line", "kept"): text.paragraph_documents,
}


@dataclass(frozen=True)
class Files(Source):
    """Text, records, tables or images in the files that match a glob."""

    path: str  # an absolute glob; what exists by its very name is taken literally
    read: Callable[[Span], Iterator[Document | BadRecord]]
    stretches: Callable[[str, int, int, int], Iterator[tables.Stretch]] | None  # of (path, start, end, target); None: 1

    @classmethod
    def text(cls, spec: str, path: str, options: dict) -> "Files":
        unit = options.get("document", "file")
        read = READERS.get((unit, options.get("line_ends", "kept")))
        match = re.fullmatch(r"(\d*):(\d*)", options.get("bytes", ":"))
        start, end = (int(match[1] or 0), int(match[2]) if match[2] else None) if match else (0, 0)
        if read is None or (end is not None and end <= start):
            raise DataError(
                f"'{spec}': unknown option value. Write document=file, line or blank_line, line_ends=dropped "
                "(files), bytes=START:END."
            )
        cuts = None if unit == "file" else text.stretches
        return cls(absolute(path), read, cuts, spec=spec, start=start, end=end)

    @classmethod
    def json(cls, spec: str, path: str, options: dict) -> "Files":
        choice = records.Choice.parse(spec, options)
        read = functools.partial(records.json_documents, read=choice.reader({}))
        return cls(absolute(path), read, text.stretches, spec=spec, fields=choice.fields, records=True)

    @classmethod
    def parquet(cls, spec: str, path: str, options: dict) -> "Files":
        choice = records.Choice.parse(spec, options)
        read = functools.partial(tables.parquet_documents, choice=choice)
        return cls(absolute(path), read, tables.parquet_stretches, spec=spec, fields=choice.fields, records=True)

    @classmethod
    def arrow(cls, spec: str, path: str, options: dict) -> "Files":
        choice = records.Choice.parse(spec, options)
        path, read = absolute(path), functools.partial(tables.arrow_documents, choice=choice)
        pattern = tables.dataset_pattern(spec, path)
        return cls(pattern, read, tables.arrow_stretches, spec=spec, fields=choice.fields, records=True)

    @classmethod
    def csv(cls, spec: str, path: str, options: dict, delimiter: str) -> "Files":
        choice, quotes = records.Choice.parse(spec, options), options.get("quotes", "yes")
        if quotes not in ("yes", "none"):
            raise DataError(f"'{spec}': quotes={quotes} is unknown. Write quotes=none where they are text.")
        columns = tuple(options["columns"].split(",")) if "columns" in options else ()
        read = functools.partial(
            tables.csv_documents, choice=choice, delimiter=delimiter, quotes=quotes, columns=columns
        )
        cuts = functools.partial(tables.csv_stretches, quotes=quotes)
        return cls(absolute(path), read, cuts, spec=spec, fields=choice.fields, records=True)

    @classmethod
    def annotated(cls, spec: str, path: str, options: dict, kind: str) -> "Files":
        choice = records.Choice.parse(spec, options)
        read = annotated.reader(kind, spec, options, choice.reader({}))
        return cls(absolute(path), read, None, spec=spec, fields=choice.fields, records=True)

    @classmethod
    def images(cls, spec: str, path: str, options: dict, image: images.Shape) -> "Files":
        return cls(absolute(path), functools.partial(images.file_documents, shape=image), None, spec=spec)

    def paths(self) -> list[str]:
        return list(self._find())

    def _find(self) -> dict[str, FileInfo]:
        """Existing files by path, sorted. A file with several names, through links, appears under the shortest."""
        pattern, _ = self._glob
        if is_remote(pattern):
            return glob_store(pattern)
        found = {}
        # Shortest names first: the first name of a file is the one that stays.
        for path in sorted(glob.glob(pattern, recursive=True), key=lambda path: (path.count(os.sep), path)):
            if not os.path.isdir(path):
                found.setdefault(os.path.realpath(path), path)
        return {path: info(path) for path in sorted(found.values())}

    @functools.cached_property
    def _glob(self) -> tuple[str, str]:
        """(pattern, its folder without wildcards, to which names are relative). Existing brackets are literal."""
        literal = self.path
        while glob.has_magic(literal) and (is_remote(literal) or not os.path.exists(literal)):
            literal = os.path.dirname(literal)
        folder = os.path.dirname(literal) if literal == self.path else literal
        return self.path if is_remote(self.path) else glob.escape(literal) + self.path[len(literal) :], folder

    def files(self) -> list[File]:
        found = self._find()
        if not found:
            raise DataError(f"'{self.spec}' matches no file. Name files, such as FOLDER/**/*.txt.")
        for path, (size, _) in found.items():
            # A file cut short would make a split of another size.
            if not text.is_compressed(path) and (size < (self.end or 0) or size <= self.start > 0):
                raise DataError(f"'{self.spec}': {path} has only {size} bytes. Restore it or lower bytes=START:END.")
        return [File(self._name(path), *status) for path, status in found.items()]

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._glob[1])

    def dividing(self, holdout: float) -> "Files":
        """Holds out whole files if they make a fair share of the bytes, else the last part of each file.

        Fair is from half the share to twice, and not all: with one file, or one that is nearly everything, both splits
        have text.
        """
        if self.read not in (text.whole_file, text.joined_file) or not holdout:
            return self
        # Names are hashed, so that a file stays in its split when others are added.
        total, held_out = 0, 0
        for path, (size, _) in self._find().items():
            size = max(0, min(size, self.end or sys.maxsize) - self.start)
            total += size
            held_out += size if hash_to_unit(os.fsencode(self._name(path))) < holdout else 0
        if held_out < total and holdout / 2 <= held_out / total <= holdout * 2:
            return self
        divided = functools.partial(text.divided_file, holdout=holdout, read=self.read)
        return dataclasses.replace(self, read=divided)

    def describe(self, bad: BadRecord) -> str:
        if bad.offset is None:
            return super().describe(bad)
        # Lines are counted only for a message, which reads the file from its beginning.
        return f"{bad.path}, line {text.line_number(bad.path, bad.offset)} {bad.problem}"

    def replacing_surrogates(self) -> "Files":
        """The source with U+FFFD in place of lone surrogates; only JSON has escapes that name one."""
        if getattr(self.read, "func", None) is not records.json_documents:
            return self
        return dataclasses.replace(self, read=functools.partial(self.read, replace=True))

    def spans(self, target: int) -> Iterator[Span]:
        self.files()  # raises if there is none
        for path, (size, _) in self._find().items():
            name = self._name(path)
            # A compressed file can only be read from its beginning.
            if text.is_compressed(path) or self.stretches is None:
                yield Span(path, name, self.start, self.end, size)
                continue
            end = size if self.end is None else min(size, self.end)
            for stretch in self.stretches(path, self.start, end, target):
                yield Span(path, name, *stretch)

    def documents(self, span: Span) -> Iterator[Document | BadRecord]:
        return self.read(span)
