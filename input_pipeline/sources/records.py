"""Records of named fields as documents: JSON lines, files that correspond line by line, and records of TFDS."""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from input_pipeline.errors import DataError
from input_pipeline.io import info, open_path
from input_pipeline.sources.base import BadRecord, Document, File, Source, Span, absolute, hash_to_unit
from input_pipeline.sources.text import lines

PLACEHOLDER = "{}"  # a field's name in the path of a `Parallel` source
DIGITS = 640  # that Python converts whatever its settings
Reader = Callable[[object], Document]


def parse_fields(spec: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """The option `fields` of a source of records. Errors: DataError for empty or repeated names."""
    fields = tuple(options["fields"].split(",")) if "fields" in options else ()
    if fields and ("field" in options or not all(fields) or len(set(fields)) < len(fields)):
        raise DataError(f"'{spec}': write fields=NAME,NAME, each once, or field=NAME for one text.")
    return fields


def reader(field: str, fields: Sequence[str]) -> Reader:
    """The function that makes a document of a record: of its `fields`, or without any of the text at `field`."""
    if fields:
        return functools.partial(fields_document, fields=fields)
    return functools.partial(text_document, field=field)


def value_at(record: object, field: str, types: type) -> object:
    """The value of a record (a dict) at `field`. Errors: DataError if there is none of these types."""
    value = record.get(field) if isinstance(record, dict) else None
    if not isinstance(value, types):
        fields = ", ".join(record) if isinstance(record, dict) else "none"
        raise DataError(f"no usable field '{field}' ({type(value).__name__}). Its fields: {fields}. Name another.")
    return value


def text_document(record: object, field: str) -> Document:
    """The text at `field` of a record."""
    text, data = _text_and_bytes(value_at(record, field, str | bytes))
    return Document.from_texts(hash_to_unit(data), text)


def fields_document(record: object, fields: Sequence[str]) -> Document:
    """The texts at `fields` of a record, in this order; numbers and booleans as JSON writes them."""
    pairs = [_text_and_bytes(value_at(record, field, str | bytes | int | float | Decimal)) for field in fields]
    return Document.from_texts(hash_to_unit(b"\0".join(data for _, data in pairs)), *(text for text, _ in pairs))


def _text_and_bytes(value: str | bytes | float | Decimal) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return value.decode("utf-8"), value
    text = str(value) if isinstance(value, str | Decimal) else json.dumps(value)
    return text, text.encode("utf-8")


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

    `fields` are in the order in which an objective takes them.
    """

    path: str  # absolute, with PLACEHOLDER

    @classmethod
    def make(cls, spec: str, path: str, options: Mapping[str, str]) -> "Parallel":
        fields = parse_fields(spec, options)
        if path.count(PLACEHOLDER) != 1 or not fields:
            raise DataError(f"'{spec}': name a file per field, such as parallel:train.{PLACEHOLDER}.gz?fields=en,de.")
        return cls(absolute(path), spec=spec, fields=fields, records=True)

    def _names(self) -> list[str]:
        return [self.path.replace(PLACEHOLDER, field) for field in self.fields]

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
                    texts = {field: line for field, (_, line) in zip(self.fields, found, strict=True)}
                    document = fields_document(texts, self.fields)
                except UnicodeDecodeError as error:
                    document = BadRecord(f"'{self.spec}', line {number}", f"is not UTF-8 text ({error}). Convert it.")
                yield document
        except ValueError as error:  # files of unequal length
            raise DataError(
                f"'{self.spec}', near line {number}: {error}. Give files with equally many lines."
            ) from error
