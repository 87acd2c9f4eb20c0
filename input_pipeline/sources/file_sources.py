"""What a source is, and the commonest: text, JSON lines or images in the files that match a glob."""

import dataclasses
import functools
import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from input_pipeline.away import mode, passes, persistently, real
from input_pipeline.errors import DataError
from input_pipeline.remote import at, is_remote, matching
from input_pipeline.sources import images, readers, records
from input_pipeline.sources.globs import expanded
from input_pipeline.sources.readers import Document, Span


class File(NamedTuple):
    """One file of a source, as a store remembers it."""

    name: str
    size: int  # bytes
    changed: int  # modification time, ns


class Source:
    """Something that documents are read from. Sources are small and travel to worker processes.

    A source lists its files (to notice a change) and the spans it can be read in (to share the work), and reads a span
    as documents.
    """

    spec: str
    fields: tuple[str, ...] = ()  # names of the texts that its documents are made of; () where each is a single text
    code: str = ""  # the control code that rows of it begin with
    language: str = ""  # that all of its text is of
    records = False  # whether it holds records, at named fields of which there is text or an image
    start, end = 0, None  # bytes of each file that are read
    origin = ""  # what the files belong to, where they are expected to differ elsewhere (the interpreter's version)

    def files(self) -> list[File]:
        """Every file, in a fixed order. Raises DataError if there is none."""
        raise NotImplementedError

    def spans(self, target: int) -> Iterator[Span]:
        """Everything there is to read, in order, cut into spans of about `target` bytes where that is possible."""
        raise NotImplementedError

    def documents(self, span: Span) -> Iterator[Document]:
        """The documents of one span, in order."""
        raise NotImplementedError

    def dividing(self, holdout: float) -> "Source":
        """The source as it is read where a share of its documents, `holdout`, is to be held out."""
        return self

    def paths(self) -> list[str]:
        """The files that are there to be read, in order; [] of what is read in another way."""
        return []

    def shared(self, other: "Source") -> str:
        """What both this source and `other` read, by name; empty where nothing is known to be read by both."""
        both = set(map(os.path.realpath, self.paths())) & set(map(os.path.realpath, other.paths()))
        meet = max(self.start, other.start) < min(end or sys.maxsize for end in (self.end, other.end))
        return min(both) if both and meet else self.spec if self.spec == other.spec else ""


@dataclass(frozen=True)
class Files(Source):
    """Text, JSON lines or images in the files that match a glob."""

    spec: str
    path: str  # an absolute glob, but that what exists by its very name is taken by it
    read: Callable[[Span], Iterator[Document]]
    splits: bool  # whether a file can be read in several spans
    start: int = 0  # bytes of each file that are read
    end: int | None = None
    fields: tuple[str, ...] = ()
    records: bool = False
    code: str = ""
    language: str = ""
    away: OSError | None = None  # why it cannot be told how it is to be read: whoever would read it meets this

    @classmethod
    def text(cls, spec: str, path: str, options: dict) -> "Files":
        unit = options.get("document", "file")
        if unit not in DOCUMENTS:
            raise DataError(f"'{spec}' asks for document={unit}; choose one of: {', '.join(DOCUMENTS)}")
        match = re.fullmatch(r"(\d*):(\d*)", options.get("bytes", ":"))
        if not match:
            raise DataError(f"'{spec}' asks for bytes={options['bytes']}; write bytes=START:END")
        line_ends = options.get("line_ends", "kept")
        if line_ends not in ("kept", "dropped"):
            raise DataError(f"'{spec}' asks for line_ends={line_ends}; they are kept or dropped")
        if line_ends == "dropped" and unit != "file":
            raise DataError(
                f"'{spec}' asks for line_ends=dropped and document={unit}; they are dropped of whole files, "
                "document=file, alone: leave one of the two out"
            )
        read = readers.joined_file if line_ends == "dropped" else DOCUMENTS[unit]
        start, end = int(match[1] or 0), int(match[2]) if match[2] else None
        if end is not None and end <= start:
            raise DataError(f"'{spec}' asks for bytes={options['bytes']}, which is empty; let START be below END")
        return cls(spec, absolute(path), read, unit != "file", start, end)

    @classmethod
    def json(cls, spec: str, path: str, options: dict) -> "Files":
        if fields := named_fields(spec, options):
            read = functools.partial(records.fields_document, fields=fields)
        else:
            read = functools.partial(records.text_document, field=options.get("field", "text"))
        documents = functools.partial(readers.json_documents, read=read)
        return cls(spec, absolute(path), documents, True, fields=fields, records=True)

    @classmethod
    def images(cls, spec: str, path: str, options: dict, image: images.Shape) -> "Files":
        return cls(spec, absolute(path), functools.partial(images.file_documents, shape=image), False)

    def paths(self) -> list[str]:
        return [path for path, _ in self._found()]

    def _found(self) -> list[tuple[str, tuple[int, int]]]:
        """The path of every file that is there, with its bytes and when it changed, ns.

        A file that matches by several names, through links, is there once, by the one in the fewest folders.
        Errors: OSError where a folder stays away.
        """
        if self.away:
            raise self.away
        return list(matching(self.path).items()) if is_remote(self.path) else persistently(self._look)

    @functools.cached_property
    def _glob(self) -> tuple[str, str]:
        """(pattern, its folder without wildcards, which names are relative to).

        Brackets, too, are a name's where a file or folder has it. Errors: OSError of a folder that is away.
        """
        if is_remote(self.path):
            fixed = re.match(r"[^*?[]*", self.path)[0]
            return self.path, fixed.rpartition("/")[0]
        there = self.path
        while glob.has_magic(there) and not mode(there):
            there = os.path.dirname(there)
        pattern = glob.escape(there) + self.path[len(there) :]
        return pattern, os.path.dirname(there) if there == self.path else there

    def _look(self) -> list[tuple[str, tuple[int, int]]]:
        followed, once = functools.cache(real), {}  # a folder is followed once, and not for each of its files
        for path in sorted(expanded(self._glob[0]), key=lambda path: (path.count(os.sep), path)):
            itself = os.path.join(followed(os.path.dirname(path)), os.path.basename(path))
            if stat.S_ISLNK(mode(itself, follow=False)):
                itself = followed(itself)
                if not mode(itself):
                    raise DataError(f"'{self.spec}' matches {path}, a link that leads nowhere; mend or delete it")
            if stat.S_ISREG(mode(itself)):
                status = os.stat(itself)
                once.setdefault(itself, (path, (status.st_size, status.st_mtime_ns)))
        return sorted(once.values())

    def _there(self) -> list[tuple[str, tuple[int, int]]]:
        """As `_found`. Errors: DataError where there is none."""
        paths = self._found()
        if not paths and is_remote(self.path):
            raise DataError(
                f"'{self.spec}' matches no file; check the bucket and the path, and write a glob's ** and *"
            )
        if not paths and persistently(lambda: any(stat.S_ISDIR(mode(path)) for path in expanded(self._glob[0]))):
            path = self.spec.partition("?")[0]
            raise DataError(f"'{self.spec}' is a folder; name its files, such as {path.rstrip('/')}/**/*")
        if not paths:
            several = re.search(r"[, ]", self._glob[0]) is not None
            joined = "; several sources are joined by ' + ', as in text:a.txt + text:b.txt" if several else ""
            look = f"check the path, for example with ls {self._glob[0]}" if not several else "check the path"
            raise DataError(f"'{self.spec}' matches no file; {look}{joined}")
        return paths

    def files(self) -> list[File]:
        found = [File(self._name(path), *status) for path, status in self._there()]
        for file in found:
            if not readers.is_compressed(file.name):
                self._check_reaches(file.name, file.size)
        return found

    def _check_reaches(self, name: str, size: int) -> None:
        """Raises DataError where a file of `size` bytes ends before what is to be read of it."""
        if self.start and size <= self.start:
            raise DataError(
                f"'{self.spec}' begins at byte {self.start}, but {name} ends at byte {size}; lower START of "
                "bytes=START:END"
            )
        if self.end and size < self.end:  # a file cut short would make a split of another size
            raise DataError(
                f"'{self.spec}' ends at byte {self.end}, but {name} ends at byte {size}; give all of it, or leave END "
                "of bytes=START:END out"
            )

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._glob[1])

    def dividing(self, holdout: float) -> "Files":
        """Whole files are held out where they make a fair share of the bytes; else, as of few files, the last of each.

        Fair is from half the share to twice, and not all: of one file, or of files of which one is nearly everything,
        both splits have text. Of files on a server that is away this is not known, and nothing of them can be read.
        """
        if self.read not in (readers.whole_file, readers.joined_file) or not holdout:
            return self
        total, held = 0, 0
        try:
            found = self._found()
        except OSError as error:
            if not passes(error):
                raise
            return dataclasses.replace(self, away=error)
        for path, (size, _) in found:
            size = max(0, min(size, self.end or sys.maxsize) - self.start)
            total += size
            held += size if readers.place(os.fsencode(self._name(path))) < holdout else 0
        if held < total and holdout / 2 <= held / total <= holdout * 2:
            return self
        divided = functools.partial(readers.divided_file, holdout=holdout, read=self.read)
        return dataclasses.replace(self, read=divided)

    def spans(self, target: int) -> Iterator[Span]:
        for path, (size, _) in self._there():
            name = self._name(path)
            if readers.is_compressed(path) or not self.splits:
                yield Span(path, name, self.start, self.end, size)
                continue
            end = size if self.end is None else min(size, self.end)
            for start in range(self.start, end, target):
                yield Span(path, name, start, min(start + target, end), min(target, end - start))

    def documents(self, span: Span) -> Iterator[Document]:
        if readers.is_compressed(span.path) and (self.start or self.end):  # its size is known once it is read
            self._check_reaches(span.name, readers.size_up_to(span.path, self.end or self.start + 1))
        return self.read(span)


def named_fields(spec: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """The option `fields`, of a source of records. Errors: DataError where it names none, or one twice."""
    if "fields" not in options:
        return ()
    fields = tuple(options["fields"].split(","))
    if "field" in options or not all(fields) or len(set(fields)) < len(fields):
        raise DataError(
            f"'{spec}' is to name fields of its records; write fields=NAME,NAME, each once, or field=NAME for one text"
        )
    return fields


def absolute(path: str) -> str:
    """A path of the user's as it stands from any folder."""
    return path if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def size_and_time(path: str | Path) -> tuple[int, int]:
    """Bytes of a file, and when it changed, ns."""
    status = at(path).stat()
    return status.st_size, status.st_mtime_ns


DOCUMENTS = {
    "file": readers.whole_file,
    "line": readers.line_documents,
    "blank_line": readers.paragraph_documents,
}
