"""Text, JSON lines or images in the files that match a glob."""

import dataclasses
import functools
import glob
import heapq
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from input_pipeline.errors import DataError
from input_pipeline.io import FileInfo, glob_store, info, is_remote
from input_pipeline.sources import images, jsonl, text
from input_pipeline.sources.base import Document, File, Source, Span, absolute, hash_to_unit, named_fields

DOCUMENTS = {"file": text.whole_file, "line": text.line_documents, "blank_line": text.paragraph_documents}


@dataclass(frozen=True)
class Files(Source):
    """Text, JSON lines or images in the files that match a glob."""

    spec: str
    path: str  # an absolute glob; what exists by its very name is taken literally
    read: Callable[[Span], Iterator[Document]]
    splits: bool  # whether a file can be read in several spans
    start: int = 0  # bytes of each file that are read
    end: int | None = None
    fields: tuple[str, ...] = ()
    records: bool = False
    code: str = ""
    language: str = ""

    @classmethod
    def text(cls, spec: str, path: str, options: dict) -> "Files":
        unit = options.get("document", "file")
        if unit not in DOCUMENTS:
            raise DataError(f"'{spec}': document={unit} is unknown. Choose one of: {', '.join(DOCUMENTS)}.")
        line_ends = options.get("line_ends", "kept")
        if line_ends not in ("kept", "dropped"):
            raise DataError(f"'{spec}': line_ends={line_ends} is unknown. Choose kept or dropped.")
        if line_ends == "dropped" and unit != "file":
            raise DataError(f"'{spec}': line_ends=dropped needs document=file. Leave one of the two out.")
        match = re.fullmatch(r"(\d*):(\d*)", options.get("bytes", ":"))
        start, end = (int(match[1] or 0), int(match[2] or sys.maxsize)) if match else (0, 0)
        if end <= start:
            raise DataError(f"'{spec}': bytes={options['bytes']} is no range. Write bytes=START:END, START below END.")
        read = text.joined_file if line_ends == "dropped" else DOCUMENTS[unit]
        return cls(spec, absolute(path), read, unit != "file", start, int(match[2]) if match[2] else None)

    @classmethod
    def json(cls, spec: str, path: str, options: dict) -> "Files":
        if fields := named_fields(spec, options):
            read = functools.partial(jsonl.fields_document, fields=fields)
        else:
            read = functools.partial(jsonl.text_document, field=options.get("field", "text"))
        documents = functools.partial(jsonl.json_documents, read=read)
        return cls(spec, absolute(path), documents, True, fields=fields, records=True)

    @classmethod
    def images(cls, spec: str, path: str, options: dict, image: images.Shape) -> "Files":
        return cls(spec, absolute(path), functools.partial(images.file_documents, shape=image), False)

    def paths(self) -> list[str]:
        return list(self._find())

    def _find(self) -> dict[str, FileInfo]:
        """Existing files by path, sorted. A file with several names, through links, appears under the shortest."""
        if is_remote(self.path):
            return glob_store(self.path)
        realpath, found = functools.cache(os.path.realpath), {}  # a folder's links are resolved once for all its files
        for path in sorted(_expand(self._glob[0]), key=lambda path: (path.count(os.sep), path)):
            target = os.path.join(realpath(os.path.dirname(path)), os.path.basename(path))
            if os.path.islink(target):
                target = realpath(target)
                if not os.path.exists(target):
                    raise DataError(f"'{self.spec}' matches {path}, a broken link. Mend or delete it.")
            if os.path.isfile(target):
                found.setdefault(target, path)
        return {path: info(path) for path in sorted(found.values())}

    @functools.cached_property
    def _glob(self) -> tuple[str, str]:
        """(pattern, its folder without wildcards, to which names are relative). Existing brackets are literal."""
        if is_remote(self.path):
            return self.path, re.match(r"[^*?[]*", self.path)[0].rpartition("/")[0]
        literal = self.path
        while glob.has_magic(literal) and not os.path.exists(literal):
            literal = os.path.dirname(literal)
        pattern = glob.escape(literal) + self.path[len(literal) :]
        return pattern, os.path.dirname(literal) if literal == self.path else literal

    def _require(self) -> dict[str, FileInfo]:
        found = self._find()
        if not found and not is_remote(self.path) and os.path.isdir(self.path):
            folder = self.spec.partition("?")[0].rstrip("/")
            raise DataError(f"'{self.spec}' is a folder. Name its files, such as {folder}/**/*.")
        if not found:
            raise DataError(f"'{self.spec}' matches no file. Check the path; join several sources by ' + '.")
        return found

    def files(self) -> list[File]:
        files = [File(self._name(path), *status) for path, status in self._require().items()]
        for file in files:
            if not text.is_compressed(file.name):
                self._check_range(file.name, file.size)
        return files

    def _check_range(self, name: str, size: int) -> None:
        """A file cut short would make a split of another size."""
        if (self.start and size <= self.start) or (self.end and size < self.end):
            raise DataError(f"'{self.spec}': {name} has only {size} bytes. Restore it or lower bytes=START:END.")

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._glob[1])

    def dividing(self, holdout: float) -> "Files":
        """Holds out whole files if they make a fair share of the bytes, else the last part of each file.

        Fair is from half the share to twice, and not all: with one file, or one that is nearly everything, both splits
        have text.
        """
        if self.read not in (text.whole_file, text.joined_file) or not holdout:
            return self
        total, held_out = 0, 0
        for path, (size, _) in self._find().items():
            size = max(0, min(size, self.end or sys.maxsize) - self.start)
            total += size
            held_out += size if hash_to_unit(os.fsencode(self._name(path))) < holdout else 0
        # A share between half and twice the holdout is close enough to keep whole files together.
        if held_out < total and holdout / 2 <= held_out / total <= holdout * 2:
            return self
        divided = functools.partial(text.divided_file, holdout=holdout, read=self.read)
        return dataclasses.replace(self, read=divided)

    def spans(self, target: int) -> Iterator[Span]:
        for path, (size, _) in self._require().items():
            name = self._name(path)
            if text.is_compressed(path) or not self.splits:
                yield Span(path, name, self.start, self.end, size)
                continue
            end = size if self.end is None else min(size, self.end)
            for start in range(self.start, end, target):
                yield Span(path, name, start, min(start + target, end), min(target, end - start))

    def documents(self, span: Span) -> Iterator[Document]:
        if text.is_compressed(span.path) and (self.start or self.end):  # its size is known only after reading
            self._check_range(span.name, text.size_up_to(span.path, self.end or self.start + 1))
        return self.read(span)


def _expand(pattern: str) -> list[str]:
    """As glob.glob(pattern, recursive=True), which takes forever if links lead to a folder that contains them."""
    start, *rest = re.split(r"(?<=/)(?:\*\*/)+", re.sub(r"(?<=/)\*\*$", "**/*", pattern), maxsplit=1)
    if not rest:
        return glob.glob(pattern)
    return [path for folder in _folders(glob.glob(start)) for path in _expand(glob.escape(folder) + rest[0])]


def _folders(starts: Iterable[str]) -> Iterator[str]:
    """Folders, with "/" at the end, and all below them that are not hidden: once each, by the shortest name."""
    queue, seen = [(start.count("/"), start) for start in starts], set()
    heapq.heapify(queue)
    while queue:
        depth, folder = heapq.heappop(queue)
        if (target := os.path.realpath(folder)) in seen:
            continue
        seen.add(target)
        yield folder
        for name in os.listdir(folder):
            if not name.startswith(".") and os.path.isdir(folder + name):
                heapq.heappush(queue, (depth + 1, f"{folder}{name}/"))
