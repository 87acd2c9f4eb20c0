"""Where text comes from: `stdlib`, `text:GLOB`, `jsonl:GLOB?field=text`, `tfds:NAME?split=train`; and images:
`images:GLOB`, `tfds:NAME?split=train`.

A source lists its files (to notice a change) and the spans it can be read in (to share the work), and
reads a span as documents. `parse` turns the config's "A + B" into sources.
"""

import dataclasses
import functools
import glob
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from input_pipeline import images, readers
from input_pipeline.errors import DataError
from input_pipeline.readers import Document, Span


class File(NamedTuple):
    """One file of a source, as a store remembers it."""

    name: str
    size: int  # bytes
    changed: int  # modification time, ns


def parse(text: str, key: str, image: Sequence[int] = ()) -> list["Source"]:
    """The sources of the config value `text`, named `key` in errors.

    They hold images where `image` gives their shape, [rows, columns, colours], else text.
    """
    specs = [spec.strip() for spec in text.split(" + ")]
    if not all(specs):
        raise DataError(f"{key} = '{text}' names an empty source; write sources joined by ' + ', for example stdlib")
    if len(set(specs)) < len(specs):
        raise DataError(f"{key} = '{text}' names a source twice; name it once and set data.weights")
    return [_parse_one(spec, key, tuple(image)) for spec in specs]


def _parse_one(spec: str, key: str, image: tuple[int, ...]) -> "Source":
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        path = os.path.expanduser(spec.partition("?")[0])
        if os.path.exists(path) or glob.glob(path, recursive=True):
            raise DataError(
                f"{key} = '{spec}' is a path without the kind of its source; write {_suggested(spec, path)}"
            )
        raise DataError(f"{key} = '{spec}' has an unknown source kind '{kind}'; choose one of: {', '.join(KINDS)}")
    if kind == "images" and not image:
        raise DataError(
            f"{key} = '{spec}' reads images, but data.image is empty; set it to their rows, columns and colours, such "
            f"as {images.EXAMPLE}"
        )
    if image and kind not in IMAGES:
        raise DataError(
            f"{key} = '{spec}' reads text, but data.image = {image} asks for images; write {EXAMPLES['images']}, or "
            "leave data.image empty"
        )
    make, allowed = KINDS[kind]
    match = re.search(r"\?(\w+=.*)$", rest)
    path, query = (rest[: match.start()], match[1]) if match else (rest, "")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in allowed:
            choices = ", ".join(allowed) or "none"
            raise DataError(f"{key} = '{spec}' has an unknown option '{name}'; a {kind} source takes: {choices}")
    if bool(path) == (kind == "stdlib"):
        raise DataError(f"{key} = '{spec}' is incomplete; write {EXAMPLES[kind]}")
    return make(spec, path, options, image) if kind in IMAGES else make(spec, path, options)


class Source:
    """Something that documents are read from. Sources are small and travel to worker processes."""

    spec: str
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

    def shared(self, other: "Source") -> str:
        """What both this source and `other` read, by name; empty where nothing is known to be read by both."""
        return self.spec if self.spec == other.spec else ""


@dataclass(frozen=True)
class Files(Source):
    """Text, JSON lines or images in the files that match a glob."""

    spec: str
    pattern: str  # absolute
    root: str  # its folder without wildcards: names are relative to this
    read: Callable[[Span], Iterator[Document]]
    splits: bool  # whether a file can be read in several spans
    start: int = 0  # bytes of each file that are read
    end: int | None = None

    @classmethod
    def text(cls, spec: str, path: str, options: dict) -> "Files":
        unit = options.get("document", "file")
        if unit not in DOCUMENTS:
            raise DataError(f"'{spec}' asks for document={unit}; choose one of: {', '.join(DOCUMENTS)}")
        match = re.fullmatch(r"(\d*):(\d*)", options.get("bytes", ":"))
        if not match:
            raise DataError(f"'{spec}' asks for bytes={options['bytes']}; write bytes=START:END")
        line_ends = options.get("line_ends", "kept")
        if line_ends not in ("kept", "dropped") or (line_ends == "dropped" and unit != "file"):
            raise DataError(f"'{spec}' asks for line_ends={line_ends}; of whole files, they are kept or dropped")
        read = readers.joined_file if line_ends == "dropped" else DOCUMENTS[unit]
        start, end = int(match[1] or 0), int(match[2]) if match[2] else None
        if end is not None and end <= start:
            raise DataError(f"'{spec}' asks for bytes={options['bytes']}, which is empty; let START be below END")
        return cls(spec, *_glob(path), read, unit != "file", start, end)

    @classmethod
    def json(cls, spec: str, path: str, options: dict) -> "Files":
        return cls(
            spec,
            *_glob(path),
            functools.partial(readers.json_documents, field=options.get("field", "text")),
            True,
        )

    @classmethod
    def images(cls, spec: str, path: str, options: dict, image: images.Shape) -> "Files":
        return cls(spec, *_glob(path), functools.partial(images.file_documents, shape=image), False)

    def _found(self) -> list[str]:
        return sorted(path for path in glob.glob(self.pattern, recursive=True) if os.path.isfile(path))

    def _paths(self) -> list[str]:
        paths = self._found()
        if not paths and os.path.isdir(self.pattern):
            path = self.spec.partition("?")[0]
            raise DataError(f"'{self.spec}' is a folder; name its files, such as {path.rstrip('/')}/**/*")
        if not paths:
            raise DataError(f"'{self.spec}' matches no file; check the path, for example with ls {self.pattern}")
        return paths

    def files(self) -> list[File]:
        return [File(self._name(path), *_size_and_time(path)) for path in self._paths()]

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def dividing(self, holdout: float) -> "Files":
        """Whole files are held out where any is; else, of few files, the last share of each."""
        if self.read is not readers.whole_file or not holdout:
            return self
        if any(readers.place(os.fsencode(self._name(path))) < holdout for path in self._found()):
            return self
        return dataclasses.replace(self, read=functools.partial(readers.divided_file, holdout=holdout))

    def shared(self, other: Source) -> str:
        if not isinstance(other, Files):
            return ""
        both = set(self._found()) & set(other._found())
        meet = max(self.start, other.start) < min(end or sys.maxsize for end in (self.end, other.end))
        return min(both) if both and meet else super().shared(other)

    def spans(self, target: int) -> Iterator[Span]:
        for path in self._paths():
            name, size = self._name(path), os.path.getsize(path)
            if path.endswith(readers.COMPRESSED) or not self.splits:
                yield Span(path, name, self.start, self.end, size)
                continue
            end = size if self.end is None else min(size, self.end)
            for start in range(self.start, end, target):
                yield Span(path, name, start, min(start + target, end), min(target, end - start))

    def documents(self, span: Span) -> Iterator[Document]:
        return self.read(span)


@dataclass(frozen=True)
class StandardLibrary(Source):
    """The running interpreter's standard library: one document a .py file, tests and foreign packages left out."""

    spec: str
    SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})

    @classmethod
    def make(cls, spec: str, path: str, options: dict) -> "StandardLibrary":
        return cls(spec)

    @property
    def origin(self) -> str:
        return f"{sys.implementation.name} {sys.version.split()[0]}"

    def _paths(self) -> list[tuple[str, Path]]:
        root, paths = Path(sysconfig.get_path("stdlib")), []
        for folder, below, names in os.walk(root):
            below[:] = set(below) - self.SKIPPED  # not walked: site-packages may be large
            found = (Path(folder, name) for name in names if name.endswith(".py"))
            paths += [(path.relative_to(root).as_posix(), path) for path in found]
        if not paths:
            raise DataError(f"'stdlib' finds no .py file under {root}; install the library's source or set data.train")
        return sorted(paths)

    def files(self) -> list[File]:
        return [File(name, *_size_and_time(path)) for name, path in self._paths()]

    def spans(self, target: int) -> Iterator[Span]:
        for name, path in self._paths():
            yield Span(str(path), name, 0, None, path.stat().st_size)

    def documents(self, span: Span) -> Iterator[Document]:
        try:
            text = Path(span.path).read_bytes().decode("utf-8")
        except UnicodeDecodeError:  # a few files are in other encodings on purpose
            return
        yield readers.of_text(readers.place(span.name.encode("utf-8")), text)


@dataclass(frozen=True)
class TensorFlowDataset(Source):
    """A prepared TFDS set in ArrayRecord files, by name or by folder. TensorFlow is not used."""

    spec: str
    name: str
    split: str
    field: str
    data_dir: str | None
    image: tuple[int, ...]  # the shape of its images; () of a set of text

    @classmethod
    def make(cls, spec: str, path: str, options: dict, image: tuple[int, ...]) -> "TensorFlowDataset":
        field = options.get("field", "image" if image else "text")
        return cls(spec, path, options.get("split", "train"), field, options.get("data_dir"), image)

    @functools.cached_property
    def _builder(self):
        import tensorflow_datasets as tfds
        import tensorflow_datasets.image_classification
        import tensorflow_datasets.text  # TFDS registers the sets of these folders only once they are imported

        try:
            if self.name.startswith(("/", ".", "~")):
                builder = tfds.builder_from_directory(Path(self.name).expanduser())
            else:
                builder = tfds.builder(self.name, data_dir=self.data_dir, try_gcs=False)
        except (tfds.core.DatasetNotFoundError, ValueError):  # the latter of a set's config
            raise DataError(f"'{self.spec}': TFDS knows no set '{self.name}'; name one, or give its folder") from None
        except tfds.core.dataset_info.DatasetInfoFileError:
            raise DataError(
                f"'{self.spec}': the folder {self.name} has no dataset_info.json; give one that has"
            ) from None
        if not builder.info.splits:
            folder = re.match(r"tensorflow_datasets\.(text|image_classification)(?=\.)", type(builder).__module__)
            imported = f" --imports={folder[0]}" if folder else ""
            raise DataError(
                f"'{self.spec}' is not prepared in {builder.data_path}; run tfds build {self.name}{imported} "
                "--file_format=array_record, where TensorFlow is installed"
            )
        if builder.info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
            raise DataError(
                f"'{self.spec}' is in {builder.info.file_format.value} files, which need TensorFlow; prepare it again "
                "with --file_format=array_record"
            )
        return builder

    @functools.cached_property
    def _records(self):
        """The split's records, by index; image files in them are left as they are."""
        import tensorflow_datasets as tfds

        features = self._builder.info.features
        files = [name for name in features if isinstance(features[name], tfds.features.Image)]
        if self.field in files and not self.image:
            raise DataError(
                f"'{self.spec}' holds images at '{self.field}'; set data.image to their rows, columns and colours, "
                f"such as {images.EXAMPLE}, or name another: ?field=NAME"
            )
        whole = {name: tfds.decode.SkipDecoding() for name in files}
        try:
            return self._builder.as_data_source(split=self.split, decoders=whole)
        except ValueError:
            choices = ", ".join(self._builder.info.splits)
            raise DataError(f"'{self.spec}' has no split '{self.split}'; choose from: {choices}") from None

    def shared(self, other: Source) -> str:
        read = lambda source: (source.name, source.split, source.data_dir)  # noqa: E731
        same = isinstance(other, TensorFlowDataset) and read(self) == read(other)
        return f"split {self.split} of {self.name}" if same else ""

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name not in ("_builder", "_records")}

    def files(self) -> list[File]:
        folder = Path(self._builder.data_path)
        return [File(path.name, *_size_and_time(path)) for path in sorted(folder.iterdir()) if path.is_file()]

    def spans(self, target: int) -> Iterator[Span]:
        count, total = len(self._records), sum(file.size for file in self.files())
        step = max(1, count * target // max(total, 1))
        for start in range(0, count, step):
            end = min(start + step, count)
            yield Span(self.name, self.split, start, end, total * (end - start) // count)

    def documents(self, span: Span) -> Iterator[Document]:
        for index in range(span.start, span.end):
            record, where = self._records[index], f"'{self.spec}', record {index}"
            if self.image:
                yield images.record_document(record, self.field, where, self.image)
            else:
                yield readers.text_document(record, self.field, where)


def _suggested(spec: str, path: str) -> str:
    """The source that a bare path was probably meant to be."""
    if os.path.isdir(path):
        return f"text:{path.rstrip('/')}/**/*"
    return f"{'jsonl' if '.json' in os.path.basename(path) else 'text'}:{spec}"


def _glob(path: str) -> tuple[str, str]:
    """(absolute pattern, its folder without wildcards)."""
    pattern = os.path.abspath(os.path.expanduser(path))
    fixed = re.split(r"[*?\[]", pattern)[0]
    return pattern, os.path.dirname(fixed)


def _size_and_time(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


DOCUMENTS = {
    "file": readers.whole_file,
    "line": readers.line_documents,
    "blank_line": readers.paragraph_documents,
}

KINDS = {
    "stdlib": (StandardLibrary.make, ()),
    "text": (Files.text, ("document", "bytes", "line_ends")),
    "jsonl": (Files.json, ("field",)),
    "images": (Files.images, ()),
    "tfds": (TensorFlowDataset.make, ("split", "field", "data_dir")),
}

IMAGES = ("images", "tfds")  # kinds that can read images

EXAMPLES = {
    "stdlib": "stdlib alone",
    "text": "text:GLOB, for example text:/books/*.txt",
    "jsonl": "jsonl:GLOB?field=text",
    "images": "images:GLOB, for example images:/photos/**/*.png",
    "tfds": "tfds:NAME?split=train, or tfds:FOLDER?split=train",
}
