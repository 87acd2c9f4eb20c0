"""Where text comes from: `stdlib`, `text:GLOB`, `jsonl:GLOB?field=text`, `parallel:FILE?fields=en,de`,
`tfds:NAME?split=train`; and images: `images:GLOB`, `tfds:NAME?split=train`.

`parse` turns the config's "A + B" into sources.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from input_pipeline.away import contents, files_below, persistently
from input_pipeline.errors import DataError
from input_pipeline.remote import SCHEMES
from input_pipeline.sources import images, readers, records
from input_pipeline.sources.file_sources import File, Files, Source, named_fields, size_and_time
from input_pipeline.sources.globs import expanded
from input_pipeline.sources.parallel import Parallel
from input_pipeline.sources.readers import Document, Span

TABLES = ("csv", "tsv", "parquet")  # kinds of files that are made into others first
LINES = ("json", "jsonl")  # kinds of files that have a record a line


def parse(text: str, key: str, image: Sequence[int] = ()) -> list["Source"]:
    """The sources of the config value `text`, named `key` in errors.

    They hold images where `image` gives their shape, [rows, columns, colours], else text.
    """
    specs = [spec.strip() for spec in text.split(" + ")]
    if not all(specs):
        raise DataError(f"{key} = '{text}' names an empty source; write sources joined by ' + ', for example stdlib")
    kinds = "|".join(f"{kind}(?={'[?]|$' if kind == 'stdlib' else '[:?]'})" for kind in KINDS)  # fields=label,text
    for spec in specs:
        apart = re.split(rf"\s*[+,]\s*(?={kinds})", spec)
        if len(apart) > 1:
            raise DataError(f"{key} = '{text}': join sources by ' + ', with spaces: {' + '.join(apart)}")
    if len(set(specs)) < len(specs):
        raise DataError(f"{key} = '{text}' names a source twice; name it once and set data.weights")
    return [_parse_one(spec, key, tuple(image)) for spec in specs]


def _parse_one(spec: str, key: str, image: tuple[int, ...]) -> "Source":
    kind, _, rest = spec.partition(":")
    if kind not in KINDS:
        path = os.path.expanduser(spec.partition("?")[0])
        bare = ":" not in spec or kind in SCHEMES
        table = _suffix(path) if bare else kind.lower()
        if table in TABLES:
            raise DataError(f"{key} = '{spec}' is no source; docs/coming_from.md says how {table.upper()} becomes one")
        if kind in SCHEMES:
            raise DataError(
                f"{key} = '{spec}' is a path without the kind of its source; write {_suggested(spec, path)}"
            )
        if path and (os.path.exists(path) or expanded(os.path.abspath(path))):
            raise DataError(
                f"{key} = '{spec}' is a path without the kind of its source; write {_suggested(spec, path)}"
            )
        if bare and (path.startswith(("/", "./", "../")) or _suffix(path) in ("txt", *LINES)):
            raise DataError(
                f"{key} = '{spec}' is a path without the kind of its source, and nothing is there; check the path, and "
                f"write {_suggested(spec, path)}"
            )
        raise DataError(f"{key} = '{spec}' has an unknown source kind '{kind}'; choose one of: {', '.join(KINDS)}")
    settled = key.startswith("--")  # a flag's text goes to a run whose data.image is what it is
    if kind == "images" and not image:
        remedy = (
            f"and the run was trained on text; write {EXAMPLES['text']}"
            if settled
            else f"but data.image is empty; set it to their rows, columns and colours, such as {images.EXAMPLE}"
        )
        raise DataError(f"{key} = '{spec}' reads images, {remedy}")
    if image and kind not in IMAGES:
        raise DataError(
            f"{key} = '{spec}' reads text, but data.image = {image} asks for images; write {EXAMPLES['images']}"
            + ("" if settled else ", or leave data.image empty")
        )
    make, allowed = KINDS[kind]
    match = re.search(r"\?(\w+=.*)$", rest)
    path, query = (rest[: match.start()], match[1]) if match else (rest, "")
    given = [option.partition("=")[::2] for option in query.split("&")] if query else []  # as they stand
    if ("", "") in given:
        raise DataError(f"{key} = '{spec}' has an '&' with no option behind it; leave it out")
    options = dict(given)
    if len(options) < len(given):
        twice = next(name for name in options if sum(other == name for other, _ in given) > 1)
        raise DataError(f"{key} = '{spec}' has the option '{twice}' twice; leave one out")
    for name in options:
        if name not in allowed:
            choices = ", ".join(allowed) or "none"
            raise DataError(f"{key} = '{spec}' has an unknown option '{name}'; a {kind} source takes: {choices}")
    if bool(path) == (kind == "stdlib"):
        raise DataError(f"{key} = '{spec}' is incomplete; write {EXAMPLES[kind]}")
    marks = {name: options.pop(name) for name in ("code", "language") if name in options}
    source = make(spec, path, options, image) if kind in IMAGES else make(spec, path, options)
    return dataclasses.replace(source, **marks) if marks else source


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

    def _found(self) -> list[tuple[str, Path]]:
        return persistently(self._look)

    def _look(self) -> list[tuple[str, Path]]:
        root = Path(sysconfig.get_path("stdlib"))  # which may have packages of others within, and these be large
        found = [Path(path) for path in files_below(root, self.SKIPPED) if path.endswith(".py")]
        return sorted((path.relative_to(root).as_posix(), path) for path in found)

    def _paths(self) -> list[tuple[str, Path]]:
        if not (found := self._found()):
            root = sysconfig.get_path("stdlib")
            raise DataError(f"'stdlib' finds no .py file under {root}; install the library's source or set data.train")
        return found

    def paths(self) -> list[str]:
        return [str(path) for _, path in self._found()]

    def files(self) -> list[File]:
        return [File(name, *size_and_time(path)) for name, path in self._paths()]

    def spans(self, target: int) -> Iterator[Span]:
        for name, path in self._paths():
            yield Span(str(path), name, 0, None, path.stat().st_size)

    def documents(self, span: Span) -> Iterator[Document]:
        try:
            text = contents(Path(span.path)).decode("utf-8")
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
    fields: tuple[str, ...] = ()
    code: str = ""
    language: str = ""
    records = True

    @classmethod
    def make(cls, spec: str, path: str, options: dict, image: tuple[int, ...]) -> "TensorFlowDataset":
        fields = named_fields(spec, options)
        if image and fields:
            raise DataError(f"'{spec}' asks for fields of images, of which each is a document; write field=NAME")
        field = options.get("field", "image" if image else "text")
        return cls(spec, path, options.get("split", "train"), field, options.get("data_dir"), image, fields)

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
            elsewhere = f" --data_dir={self.data_dir}" if self.data_dir else ""
            raise DataError(
                f"'{self.spec}' is not prepared in {builder.data_path}; run tfds build {self.name}{imported}"
                f"{elsewhere} --file_format=array_record, where TensorFlow is installed"
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
        with self._naming_splits():
            return self._builder.as_data_source(split=self.split, decoders=whole)

    def _ranges(self) -> list[tuple[str, int, int]]:
        """What the split reads: (a split as the set was prepared, its first record, the one after the last)."""
        import tensorflow_datasets as tfds

        splits = self._builder.info.splits
        with self._naming_splits():
            read = tfds.core.ReadInstruction.from_spec(self.split).to_absolute(splits)
        sizes = {name: split.num_examples for name, split in splits.items()}  # a part without an end reaches to it
        return [(p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in read]

    @contextlib.contextmanager
    def _naming_splits(self) -> Iterator[None]:
        try:
            yield
        except ValueError:
            choices = ", ".join(self._builder.info.splits)
            raise DataError(f"'{self.spec}' has no split '{self.split}'; choose from: {choices}") from None

    def shared(self, other: Source) -> str:
        """The first records that both read, of one prepared set however it is named."""
        if not isinstance(other, TensorFlowDataset):
            return ""
        try:
            folders = [os.path.realpath(source._builder.data_path) for source in (self, other)]
        except DataError:  # not here any more, but tokenised
            return super().shared(other)
        if folders[0] != folders[1]:
            return ""
        for (name, *mine), (others_name, *others) in itertools.product(self._ranges(), other._ranges()):
            start, end = max(mine[0], others[0]), min(mine[1], others[1])
            if name == others_name and start < end:
                return f"records {start} to {end - 1} of split {name} in {folders[0]}"
        return ""

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name not in ("_builder", "_records")}

    def files(self) -> list[File]:
        folder = Path(self._builder.data_path)
        return [File(path.name, *size_and_time(path)) for path in sorted(folder.iterdir()) if path.is_file()]

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
            elif self.fields:
                yield records.fields_document(_of_float32(record), where, self.fields)
            else:
                yield records.text_document(record, where, self.field)


def _of_float32(record: Mapping[str, object]) -> dict[str, object]:
    """A record of TFDS, whose fractions are of 32 bits: with no more digits than tell one from the next.

    Whole numbers stay what they are, as long as they are written without an exponent.
    """

    def short(value: object) -> object:
        exact = type(value) is not float or (value.is_integer() and abs(value) < 1e16)
        return value if exact else float(str(np.float32(value)))

    return {name: short(value) for name, value in record.items()}


def told_of_text(source: Source, files: Sequence[File]) -> str:
    """What to say of files that are read as plain text, where their names say that they have fields; else nothing."""
    found = {_suffix(file.name) for file in files} if source.spec.startswith("text:") else set()
    tables, lines = ([kind for kind in kinds if kind in found] for kinds in (TABLES, LINES))
    ways = []
    if tables:
        ways.append(f"docs/coming_from.md says how {' or '.join(tables).upper()} becomes a source of fields")
    if lines:
        ways.append("jsonl:GLOB?field=text reads a field of each line")
    named = " and ".join(f".{kind}" for kind in (*tables, *lines))
    what = f"{source.spec} is read as plain text, with all that marks the fields of {named}"
    return f"{what}; {', and '.join(ways)}" if ways else ""


def _suffix(path: str) -> str:
    """The kind of a file by its name, whether it is compressed or not: txt, csv; empty where that has none."""
    return os.path.splitext(path.lower().removesuffix(".gz").removesuffix(".zst"))[1].lstrip(".")


def _suggested(spec: str, path: str) -> str:
    """The source that a bare path was probably meant to be."""
    if os.path.isdir(path):
        return f"text:{path.rstrip('/')}/**/*"
    return f"{'jsonl' if '.json' in os.path.basename(path).lower() else 'text'}:{spec}"


KINDS = {
    "stdlib": (StandardLibrary.make, ()),
    "text": (Files.text, ("document", "bytes", "line_ends", "code", "language")),
    "jsonl": (Files.json, ("field", "fields", "code", "language")),
    "parallel": (Parallel.make, ("fields",)),
    "images": (Files.images, ()),
    "tfds": (TensorFlowDataset.make, ("split", "field", "fields", "data_dir", "code", "language")),
}

IMAGES = ("images", "tfds")  # kinds that can read images

EXAMPLES = {
    "stdlib": "stdlib alone",
    "text": "text:GLOB, for example text:/books/*.txt",
    "jsonl": "jsonl:GLOB?field=text",
    "parallel": "parallel:FILE?fields=NAME,NAME, with {} in FILE where their names differ",
    "images": "images:GLOB, for example images:/photos/**/*.png",
    "tfds": "tfds:NAME?split=train, or tfds:FOLDER?split=train",
}
