"""Records of named fields as documents: paths of fields, JSON lines, and files that correspond line by line."""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

import numpy as np

from input_pipeline.errors import DataError
from input_pipeline.io import info, open_path
from input_pipeline.sources.base import BadRecord, Document, File, Source, Span, absolute, hash_to_unit
from input_pipeline.sources.text import lines

SIDES = ("source", "target")  # fields of a pair of lines
PLACEHOLDER = "{}"  # a field's name in the path of a `Parallel` source
DIGITS = 640  # that Python converts whatever its settings
Convert = Callable[[object], object]
Reader = Callable[[object], Document]
NOTHING: Mapping[str, Convert] = MappingProxyType({})


@dataclass(frozen=True)
class Choice:
    """Fields of a record that a source reads, by paths such as `text`, `meta.text` or `answers.text.0`."""

    field: str  # of the single text; "" for whole records
    fields: tuple[str, ...]  # of several texts, in order; ()
    labels: str = "names"  # or "ids": what classes become

    @classmethod
    def parse(cls, spec: str, options: Mapping[str, str], default: str = "text") -> "Choice":
        """The options field, fields and labels of a source. Errors: DataError for empty, repeated or unknown values."""
        fields = tuple(options["fields"].split(",")) if "fields" in options else ()
        if fields and ("field" in options or not all(fields) or len(set(fields)) < len(fields)):
            raise DataError(f"'{spec}': write fields=NAME,NAME, each once, or field=NAME for one text.")
        labels = options.get("labels", "names")
        if labels not in ("names", "ids"):
            raise DataError(f"'{spec}': labels={labels} is unknown. Write labels=names or labels=ids.")
        return cls(options.get("field", default), fields, labels)

    @property
    def names(self) -> tuple[str, ...]:
        """All its fields; () for whole records."""
        return self.fields or (self.field,) * bool(self.field)

    def reader(self, convert: Mapping[str, "Convert"]) -> "Reader":
        """The function that makes a document of a record; `convert` has functions for the values of some fields."""
        if not self.names:
            return functools.partial(whole_document, convert=convert)
        if self.fields:
            return functools.partial(fields_document, fields=self.fields, convert=convert)
        return functools.partial(text_document, field=self.field, convert=convert)


def value_at(record: object, field: str, types: type, convert: Mapping[str, "Convert"] = NOTHING) -> object:
    """The value of a record (a dict) at a path; a name with dots counts as it is.

    Errors: DataError if there is none of these types.
    """
    whole, value = isinstance(record, dict) and field in record, record
    for step in [field] if whole else field.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list | np.ndarray) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            value = None
    value = value.item() if getattr(value, "shape", None) == () else value
    if value is not None and field in convert:
        value = convert[field](value)
    if not isinstance(value, types):
        paths = ", ".join(_paths(record)) or "none"
        raise DataError(f"no usable field '{field}' ({type(value).__name__}). Its fields: {paths}. Name another.")
    return value


def _paths(value: object, path: str = "") -> Iterator[str]:
    """Paths of the values in a record; of a list that of its first."""
    children = value.items() if isinstance(value, dict) else [(0, value[0])] if _is_list(value) else []
    if path and not children:
        yield path
    for name, child in children:
        yield from _paths(child, f"{path}.{name}" if path else str(name))


def _is_list(value: object) -> bool:
    return isinstance(value, list | np.ndarray) and getattr(value, "shape", None) != () and len(value) > 0


def whole_document(record: object, convert: Mapping[str, "Convert"] = NOTHING) -> Document:
    """A record as it is, with the values of the fields in `convert`."""
    if not isinstance(record, dict):
        raise DataError(f"it is a {type(record).__name__} and no object")
    converted = {name: function(record[name]) for name, function in convert.items() if record.get(name) is not None}
    return Document(0.0, (), {**record, **converted})


def text_document(record: object, field: str, convert: Mapping[str, "Convert"] = NOTHING) -> Document:
    """The text at `field` of a record."""
    text, data = _text_and_bytes(value_at(record, field, str | bytes, convert))
    return Document.from_texts(hash_to_unit(data), text)


def fields_document(record: object, fields: Sequence[str], convert: Mapping[str, "Convert"] = NOTHING) -> Document:
    """The texts at `fields` of a record, in this order; numbers and booleans as JSON writes them."""
    values = [value_at(record, field, str | bytes | int | float | Decimal, convert) for field in fields]
    pairs = list(map(_text_and_bytes, values))
    return Document.from_texts(hash_to_unit(b"\0".join(data for _, data in pairs)), *(text for text, _ in pairs))


def _text_and_bytes(value: str | bytes | float | Decimal) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return value.decode("utf-8"), value
    text = str(value) if isinstance(value, str | Decimal) else json.dumps(value)
    return text, text.encode("utf-8")


def name_class(value: int, names: Sequence[str]) -> str:
    """The name of a class. Errors: DataError for a number without one, such as -1 where labels are withheld."""
    if not 0 <= value < len(names):
        raise DataError(f"label {value} has no name. Add labels=ids, or choose another split.")
    return names[value]


def shortest_float(value: float) -> float:
    """A float32 value as the float of the fewest digits that tell it from other float32 values. Whole numbers stay.

    Libraries give float32 values as Python floats, which would print 0.2 as 0.20000000298023224.
    """
    # NumPy prints the shortest decimal that reads back as the same float32.
    return value if value.is_integer() and abs(value) < 1e16 else float(str(np.float32(value)))


def json_documents(span: Span, read: Reader, replace: bool = False) -> Iterator[Document | BadRecord]:
    """The document that `read` makes of each line's JSON object; `replace` replaces lone surrogates."""
    for offset, line in lines(span):
        if not line.strip():
            continue
        try:
            # Decoded first: of bytes, json would guess UTF-16 and UTF-32 too.
            record = _parse(line.decode("utf-8").removeprefix("\ufeff"))
            # Only escapes can name a surrogate: as bytes it is no UTF-8.
            document = read(_replace_surrogates(record) if replace and b"\\u" in line else record)
        except UnicodeEncodeError:
            document = BadRecord(span.path, "has a lone surrogate. Set data.replace_surrogates=True.", offset)
        except (ValueError, RecursionError) as error:  # of UTF-8, JSON, its depth, or its fields
            document = BadRecord(span.path, f"is no usable object: {str(error).rstrip('.')}.", offset)
        yield document


def _parse(text: str) -> object:
    """The value of JSON text, with numbers of any length. Errors: ValueError, RecursionError."""
    try:
        return json.loads(text)
    except ValueError:
        # Python reads numbers of up to 4,300 digits. Again, since a function for all numbers takes 1.4 times as long.
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= DIGITS else Decimal(digits))


def _replace_surrogates(value: object) -> object:
    """`value` with U+FFFD in place of each lone surrogate in its texts."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {name: _replace_surrogates(item) for name, item in value.items()}
    return value


@dataclass(frozen=True)
class Parallel(Source):
    """Line i of every file is a text of document i: `parallel:data/train.{}.gz?fields=en,de`.

    Its fields are in the order in which an objective takes them. Whole records have them as `source` and `target`, so
    that one task reads many languages.
    """

    path: str  # absolute, with PLACEHOLDER
    files_of: tuple[str, ...]  # what stands for PLACEHOLDER in each
    whole: bool

    @classmethod
    def make(cls, spec: str, path: str, options: Mapping[str, str]) -> "Parallel":
        whole = options.get("field") == ""
        fields = Choice.parse(spec, {name: value for name, value in options.items() if name != "field"}).fields
        if path.count(PLACEHOLDER) != 1 or not fields:
            raise DataError(f"'{spec}': name a file per field, such as parallel:train.{PLACEHOLDER}.gz?fields=en,de.")
        if whole and len(fields) != len(SIDES):
            raise DataError(f"'{spec}': a task reads pairs of lines. Name two fields.")
        return cls(absolute(path), fields, whole, spec=spec, fields=() if whole else fields, records=True)

    def _names(self) -> list[str]:
        return [self.path.replace(PLACEHOLDER, name) for name in self.files_of]

    def paths(self) -> list[str]:
        return [path for path in self._names() if open_path(path).is_file()]

    def files(self) -> list[File]:
        if missing := set(self._names()) - set(self.paths()):
            raise DataError(f"'{self.spec}': {min(missing)} is no file. Check the path.")
        return [File(os.path.basename(path), *info(open_path(path))) for path in self._names()]

    def spans(self, target: int) -> Iterator[Span]:
        """One span: a line's offset in one file says nothing about its offset in another."""
        size = sum(file.size for file in self.files())
        yield Span(self.path, os.path.basename(self.path), 0, None, size)

    def documents(self, span: Span) -> Iterator[Document]:
        files = [lines(Span(path, path, 0, None, 0)) for path in self._names()]
        number = 0
        try:
            for number, found in enumerate(zip(*files, strict=True), start=1):
                try:
                    texts = [line for _, line in found]
                    if self.whole:
                        decoded = (line.decode("utf-8") for line in texts)
                        document = whole_document(dict(zip(SIDES, decoded, strict=True)))
                    else:
                        document = fields_document(dict(zip(self.fields, texts, strict=True)), self.fields)
                except UnicodeDecodeError as error:
                    document = BadRecord(f"'{self.spec}', line {number}", f"is not UTF-8 text ({error}). Convert it.")
                yield document
        except ValueError as error:  # files of unequal length
            raise DataError(
                f"'{self.spec}', near line {number}: {error}. Give files with equally many lines."
            ) from error
